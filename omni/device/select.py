"""Opens a device by name."""

import torch

from omni.device.base import Device
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.errors import ConfigError, counted


def name_device(name: str | None) -> torch.device:
    """The device of that name, which need not exist here. Raises ConfigError for an invalid name."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ConfigError("device", f"{name!r} is not a device", 'use "cpu", "cuda" or "cuda:N"')
    return torch.device("cuda", int(index or 0))


def open_device(name: str | None) -> Device:
    """Opens `"cpu"`, `"cuda"` or `"cuda:N"`; None is the first CUDA device if any, else the CPU. Raises ConfigError."""
    device = name_device(name)
    if device.type == "cpu":
        return CpuDevice()
    check_exists(device)
    return CudaDevice(device.index)


def check_exists(device: torch.device, field: str = "device") -> None:
    """Raises ConfigError about `field` for a CUDA device that is not here. Does not initialize CUDA."""
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        remedy = f"there {'is' if count == 1 else 'are'} {counted(count, 'CUDA device')}"
        raise ConfigError(field, f"'{device}' does not exist here", remedy)
