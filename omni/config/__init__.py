"""Settings: their sources, how one overrides another, and the origin of each."""

from omni.config.file import read_config
from omni.config.layer import SettingsLayer, parse_override
from omni.config.overlay import DEFAULT, FAMILY, Setting, overlay

__all__ = ["DEFAULT", "FAMILY", "Setting", "SettingsLayer", "overlay", "parse_override", "read_config"]
