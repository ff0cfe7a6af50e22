"""The command line: `omni run`, `omni explain`, `omni doctor`, `omni plugins`, `omni tiny`. Each imports only what it needs."""

from omni.cli.app import app, main

__all__ = ["app", "main"]
