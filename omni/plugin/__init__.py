"""Plugins: their entries, and their discovery."""

from omni.plugin.entries import (
    ConnectorEntry,
    LogitsProcessorEntry,
    ModelFamily,
    PipelineExtension,
    StageKindEntry,
    locate,
)

__all__ = [
    "ConnectorEntry",
    "LogitsProcessorEntry",
    "ModelFamily",
    "PipelineExtension",
    "StageKindEntry",
    "locate",
]
