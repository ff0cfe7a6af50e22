"""The version, in one place that needs no installed distribution."""

__version__ = "0.1.0"

TESTED = {"transformers": ("5.17.0", "5.24.0")}
"""The oldest and the newest version of a package that the tests ran with: constraints.txt, constraints.newest.txt."""
