"""The command line: `omni run`, `omni plugins`, `omni tiny`. Each command imports only what it needs."""

from omni.cli.app import app, main

__all__ = ["app", "main"]
