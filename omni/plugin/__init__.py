"""Plugins: their entries, and their discovery."""

from omni.plugin.entries import ConnectorEntry, LogitsProcessorEntry, ModelFamily, StageKindEntry
from omni.plugin.locate import call_entry, expect, locate

__all__ = [
    "ConnectorEntry",
    "LogitsProcessorEntry",
    "ModelFamily",
    "StageKindEntry",
    "call_entry",
    "expect",
    "locate",
]
