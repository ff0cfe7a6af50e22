"""Plugins: their entries, and their discovery."""

from omni.plugin.entries import (
    ConnectorEntry,
    DrafterEntry,
    LogitsProcessorEntry,
    ModelFamily,
    PipelineExtension,
    StageKindEntry,
)
from omni.plugin.locate import call_entry, expect, locate

__all__ = [
    "ConnectorEntry",
    "DrafterEntry",
    "LogitsProcessorEntry",
    "ModelFamily",
    "PipelineExtension",
    "StageKindEntry",
    "call_entry",
    "expect",
    "locate",
]
