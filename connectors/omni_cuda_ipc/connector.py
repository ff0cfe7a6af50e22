"""The connector of two processes with CUDA devices of one host: a pool of GPU memory that the receiver has mapped.

The sender copies payloads into its pool on a stream of its own, which then writes their numbers into a board in host
memory. So a piece travels while its copy runs, and no host waits for the other's event. On the same GPU a consumer
reads small payloads in the pool itself; others, and all of another GPU, are copied by the receiver, over the peer
connection. No data passes through the host. `omni.connector.pool` has the owners of the pool's ranges.

The pool is allocated once, outside of torch's allocator, exported once, and freed with the sender.
"""

import mmap
import os
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, CopiedBoard, PoolReceiver, PoolSender, TensorMemory
from omni.device import cuda_driver as driver
from omni.errors import ConfigError
from omni.ipc.memory import SharedMemoryAddress, create_memory

_POOLS: dict[int, tuple[mmap.mmap, Tensor]] = {}
"""Boards and pool of the senders in this process, by descriptor: a process cannot open a handle of its own."""


class CudaIpcAddress(msgspec.Struct, frozen=True, array_like=True):
    """boards: shared host memory, the acknowledgements first. device: of the pool, by its unique id: processes may
    number devices differently."""

    boards: SharedMemoryAddress
    handle: bytes
    nbytes: int
    device: str


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """A pool on another GPU. device: the receiver's."""

    pointer: int
    device: torch.device

    @property
    def views(self) -> None:
        return None

    def copy_to(self, into: Tensor, start: int) -> None:
        driver.copy(into, self.pointer + start, torch.cuda.current_stream(self.device).cuda_stream)


class CudaIpcConnector:
    reach = Reach.HOST
    raw_device_tensors = True

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return producer.type == consumer.type == "cuda"

    def sender(self, end: EdgeEnd) -> Sender:
        """Raises ConfigError if the GPU has insufficient memory for the pool."""
        device = end.device.torch_device
        assert device.index is not None
        try:
            pointer = driver.allocate(device.index, end.pool_bytes)
        except driver.CudaError as error:
            raise ConfigError(f"{end.edge}: pool_bytes", f"{end.pool_bytes:,}: {error}", "lower it") from error
        descriptor, mapping = create_memory(2 * BOARD_BYTES, "omni-boards")
        pool = driver.as_tensor(pointer, end.pool_bytes, device)
        board, marks = _boards(mapping)
        memory = torch.from_numpy(marks)
        unpin = end.device.pin(memory)
        copied = CopiedBoard(marks, driver.as_tensor(memory.data_ptr(), BOARD_BYTES, device).view(torch.int64))
        if copied.device.data_ptr() != memory.data_ptr():
            raise RuntimeError(f"torch {torch.__version__} copies pinned memory to {device}: it cannot be shared")
        _POOLS[descriptor] = mapping, pool

        def close() -> None:
            del _POOLS[descriptor]
            unpin()
            driver.free(device.index, pointer)
            os.close(descriptor)

        shared = SharedMemoryAddress(os.getpid(), descriptor, len(mapping))
        address = CudaIpcAddress(shared, driver.export(device.index, pointer), end.pool_bytes, _id_of(device))
        return PoolSender(end, pool=pool, board=board, address=address, on_close=close, copied=copied)

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        """Raises ConfigError if the GPUs are not connected."""
        assert isinstance(address, CudaIpcAddress)
        device = end.device.torch_device
        if address.boards.pid == os.getpid():
            mapping, pool = _POOLS[address.boards.descriptor]
            board, marks = _boards(mapping)
            return PoolReceiver(
                end,
                memory=TensorMemory(pool, device),
                board=board,
                pool_bytes=address.nbytes,
                on_close=_nothing,
                copied=marks,
            )
        try:
            board, marks = _boards(address.boards.map())
            pointer = driver.open_handle(device.index, address.handle)
        except (OSError, driver.CudaError) as error:
            problem = f"{device} cannot reach the sender's GPU memory: {error}"
            raise ConfigError(f"{end.edge}: connector", problem, 'use "shm"') from error
        close = partial(driver.close_handle, device.index, pointer)
        if address.device == _id_of(device):
            memory = TensorMemory(driver.as_tensor(pointer, address.nbytes, device), device)
            return PoolReceiver(
                end, memory=memory, board=board, pool_bytes=address.nbytes, on_close=close, copied=marks
            )
        return PoolReceiver(
            end,
            memory=PeerMemory(pointer, device),
            board=board,
            pool_bytes=address.nbytes,
            on_close=close,
            copied=marks,
        )


def _boards(mapping: mmap.mmap) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The acknowledgements, and the copied pieces."""
    half = BOARD_BYTES // 8
    return np.frombuffer(mapping, np.uint64, half), np.frombuffer(mapping, np.int64, half, BOARD_BYTES)


def _id_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _nothing() -> None:
    pass
