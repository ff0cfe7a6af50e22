"""The connector `shm` with a board of copied pieces, as `cuda_ipc` has one: on the CPU, and with copies that are late."""

import mmap
import os

import numpy as np
import torch

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, CopiedBoard, PoolReceiver, PoolSender, TensorMemory
from omni.device import Device
from omni.ipc.memory import SharedMemoryAddress, create_memory
from omni.testing import SimulatedDevice


class _Stepping:
    """A board. Each look of the host takes time on a simulated device, as a poll of an event does."""

    def __init__(self, board: "np.ndarray[tuple[int], np.dtype[np.int64]]", device: Device) -> None:
        self._board = board
        self._device = device

    def __getitem__(self, slot: int) -> int:
        if isinstance(self._device, SimulatedDevice):
            self._device.host_step()
        return int(self._board[slot])


_MAPPINGS: dict[int, mmap.mmap] = {}


class MarkingConnector:
    reach = Reach.HOST
    raw_device_tensors = False

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        descriptor, mapping = create_memory(2 * BOARD_BYTES + end.pool_bytes, "omni-marking")
        _MAPPINGS[descriptor] = mapping

        def close() -> None:
            del _MAPPINGS[descriptor]
            os.close(descriptor)

        marks = np.frombuffer(mapping, np.int64, BOARD_BYTES // 8, BOARD_BYTES)
        copied = CopiedBoard(_Stepping(marks, end.device), torch.from_numpy(marks))  # type: ignore[arg-type]
        address = SharedMemoryAddress(os.getpid(), descriptor, len(mapping))
        return PoolSender(
            end, pool=_pool(mapping), board=_board(mapping), address=address, on_close=close, copied=copied
        )

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        assert isinstance(address, SharedMemoryAddress)
        mapping = _MAPPINGS[address.descriptor] if address.pid == os.getpid() else address.map()
        marks = np.frombuffer(mapping, np.int64, BOARD_BYTES // 8, BOARD_BYTES)
        memory = TensorMemory(_pool(mapping), end.device.torch_device)
        looks = _Stepping(marks, end.device)
        return PoolReceiver(
            end,
            memory=memory,
            board=_board(mapping),
            pool_bytes=end.pool_bytes,
            on_close=lambda: None,
            copied=looks,  # type: ignore[arg-type]
        )


def _board(mapping: mmap.mmap) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.frombuffer(mapping, np.uint64, BOARD_BYTES // 8)


def _pool(mapping: mmap.mmap) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(mapping, np.uint8, offset=2 * BOARD_BYTES))
