"""Devices: the only way to touch device memory."""

from omni.device.allocations import AllocationCount
from omni.device.base import COMPLETED, Device, Event, Phase, Stream
from omni.device.ring import HostRing, HostSlot
from omni.device.select import name_device, open_device
from omni.device.upload import Span, Upload, Uploader

__all__ = [
    "COMPLETED",
    "AllocationCount",
    "Device",
    "Event",
    "HostRing",
    "HostSlot",
    "Phase",
    "Span",
    "Stream",
    "Upload",
    "Uploader",
    "name_device",
    "open_device",
]
