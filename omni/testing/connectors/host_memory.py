"""The host memory that a connector uses."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self
from unittest.mock import patch

import msgspec
import numpy as np
import torch

from omni.device import Device


class HostMemory:
    """While entered, counts the bytes of pinned memory that the devices give out or pin."""

    def __init__(self, *devices: Device) -> None:
        self.nbytes = 0
        self._devices = {id(device): device for device in devices}.values()
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        for device in self._devices:
            self._entered.enter_context(patch.object(device, "host_tensor", self._giving(device.host_tensor)))
            self._entered.enter_context(patch.object(device, "pin", self._pinning(device.pin)))
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered.close()

    def _giving(
        self, give: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
    ) -> Callable[[tuple[int, ...], torch.dtype], torch.Tensor]:
        def host_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            tensor = give(shape, dtype)
            self.nbytes += tensor.nbytes
            return tensor

        return host_tensor

    def _pinning(
        self, pin: Callable[[torch.Tensor], Callable[[], None]]
    ) -> Callable[[torch.Tensor], Callable[[], None]]:
        def counted(memory: torch.Tensor) -> Callable[[], None]:
            self.nbytes += memory.nbytes
            return pin(memory)

        return counted


def bytes_in(piece: object) -> int:
    """The bytes of arrays and byte strings in a piece."""
    if isinstance(piece, np.ndarray):
        return piece.nbytes
    if isinstance(piece, bytes | bytearray | memoryview):
        return len(piece)
    if isinstance(piece, msgspec.Struct):
        return sum(bytes_in(each) for each in msgspec.structs.asdict(piece).values())
    if isinstance(piece, list | tuple):
        return sum(bytes_in(each) for each in piece)
    return 0
