"""Devices: the only access to device memory."""

from omni.device.allocations import AllocationCount
from omni.device.base import (
    COMPLETED,
    Device,
    DeviceTimer,
    Event,
    Graph,
    Launch,
    LaunchObserver,
    Phase,
    PhaseCategory,
    SharedCaptures,
    SharedMemory,
    Stream,
    category_of,
    declare_categories,
)
from omni.device.cpu import CpuDevice
from omni.device.download import Download, Downloader, SharedRing
from omni.device.host_work import HostTask, HostWorker
from omni.device.ring import HostRing, HostSlot
from omni.device.select import check_exists, name_device, open_device
from omni.device.sync import SyncCheck, SyncGuard, host_waits, sync_guard
from omni.device.sync_points import SyncPoint, may_sync
from omni.device.upload import PackedSpan, Upload, Uploader

__all__ = [
    "COMPLETED",
    "AllocationCount",
    "CpuDevice",
    "Device",
    "DeviceTimer",
    "Download",
    "Downloader",
    "Event",
    "Graph",
    "HostRing",
    "HostSlot",
    "HostTask",
    "HostWorker",
    "Launch",
    "LaunchObserver",
    "PackedSpan",
    "Phase",
    "PhaseCategory",
    "SharedCaptures",
    "SharedMemory",
    "SharedRing",
    "Stream",
    "SyncCheck",
    "SyncGuard",
    "SyncPoint",
    "Upload",
    "Uploader",
    "category_of",
    "check_exists",
    "declare_categories",
    "host_waits",
    "may_sync",
    "name_device",
    "open_device",
    "sync_guard",
]
