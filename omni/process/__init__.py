"""An engine in a process of its own."""

from omni.process.remote import RemoteEngine
from omni.process.select import runs_in_process

__all__ = ["RemoteEngine", "runs_in_process"]
