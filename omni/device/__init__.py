"""Devices: the only way to touch device memory."""

from omni.device.base import COMPLETED, Device, Event, Phase, Stream
from omni.device.ring import HostRing, HostSlot
from omni.device.select import open_device
from omni.device.upload import Span, Upload, Uploader

__all__ = [
    "COMPLETED",
    "Device",
    "Event",
    "HostRing",
    "HostSlot",
    "Phase",
    "Span",
    "Stream",
    "Upload",
    "Uploader",
    "open_device",
]
