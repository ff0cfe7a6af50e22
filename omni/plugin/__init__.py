"""Plugins: what they register, and how they are found."""

from omni.plugin.entries import ConnectorEntry, ModelFamily, StageKindEntry
from omni.plugin.locate import locate

__all__ = ["ConnectorEntry", "ModelFamily", "StageKindEntry", "locate"]
