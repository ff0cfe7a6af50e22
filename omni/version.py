"""The version, in one place that needs no installed distribution."""

__version__ = "0.1.0"
