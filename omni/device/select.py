"""From a name to a device."""

import torch

from omni.device.base import Device
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.errors import ConfigError


def open_device(name: str | None) -> Device:
    """`"cpu"`, `"cuda"`, `"cuda:N"`; None takes the first CUDA device if there is one, else the CPU. Raises ConfigError."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return CpuDevice()
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ConfigError("device", f"{name!r} is not a device", 'use "cpu", "cuda" or "cuda:N"')
    if int(index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            "device", f"{name!r} does not exist here", f"there are {torch.cuda.device_count()} CUDA devices"
        )
    return CudaDevice(int(index or 0))
