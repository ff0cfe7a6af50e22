"""Engines in processes of their own."""

from omni.process.group import EngineGroup
from omni.process.select import runs_in_process

__all__ = ["EngineGroup", "runs_in_process"]
