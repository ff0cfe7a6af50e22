"""Plugins: their entries, and their discovery."""

from omni.plugin.entries import ConnectorEntry, LogitsProcessorEntry, ModelFamily, StageKindEntry, locate

__all__ = ["ConnectorEntry", "LogitsProcessorEntry", "ModelFamily", "StageKindEntry", "locate"]
