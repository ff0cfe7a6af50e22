"""The connector of two processes with CUDA devices of one host: a pool of GPU memory that the receiver has mapped.

The sender copies payloads into its pool on a stream of its own. On the same GPU a consumer reads small payloads in the
pool itself; others, and all of another GPU, are copied by the receiver, over the peer connection. Nothing passes
through the host. `omni.connector.pool` states who owns a range of the pool when.

The pool is allocated once, outside of torch's allocator, exported once, and freed with the sender.
"""

import os
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, PoolReceiver, PoolSender, TensorMemory
from omni.errors import ConfigError
from omni.ipc.memory import SharedMemoryAddress, create_memory
from omni_cuda_ipc import driver

_POOLS: dict[int, tuple[object, Tensor]] = {}
"""Board and pool of the senders in this process, by descriptor: a process cannot open a handle of its own."""


class CudaIpcAddress(msgspec.Struct, frozen=True, array_like=True):
    """board: shared host memory. device: of the pool, by its unique id: processes may number devices differently."""

    board: SharedMemoryAddress
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
        """Raises ConfigError if the GPU has no room for the pool."""
        device = end.device.torch_device
        assert device.index is not None
        try:
            pointer = driver.allocate(device.index, end.pool_bytes)
        except driver.CudaError as error:
            raise ConfigError(f"{end.edge}: pool_bytes", f"{end.pool_bytes:,}: {error}", "lower it") from error
        descriptor, mapping = create_memory(BOARD_BYTES, "omni-board")
        board, pool = np.frombuffer(mapping, np.uint64), driver.as_tensor(pointer, end.pool_bytes, device)
        _POOLS[descriptor] = board, pool

        def close() -> None:
            del _POOLS[descriptor]
            driver.free(device.index, pointer)
            os.close(descriptor)

        shared = SharedMemoryAddress(os.getpid(), descriptor, BOARD_BYTES)
        handle = driver.export(device.index, pointer)
        return PoolSender(end, pool, board, CudaIpcAddress(shared, handle, end.pool_bytes, _id_of(device)), close)

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        """Raises ConfigError if the GPUs are not connected."""
        assert isinstance(address, CudaIpcAddress)
        device = end.device.torch_device
        if address.board.pid == os.getpid():
            board, pool = _POOLS[address.board.descriptor]
            assert isinstance(board, np.ndarray)
            return PoolReceiver(end, TensorMemory(pool, device), board, address.nbytes, _nothing)
        try:
            board = np.frombuffer(address.board.map(), np.uint64)
            pointer = driver.open_handle(device.index, address.handle)
        except (OSError, driver.CudaError) as error:
            problem = f"{device} cannot reach the sender's GPU memory: {error}"
            raise ConfigError(f"{end.edge}: connector", problem, 'use "shm"') from error
        close = partial(driver.close_handle, device.index, pointer)
        if address.device == _id_of(device):
            memory = TensorMemory(driver.as_tensor(pointer, address.nbytes, device), device)
            return PoolReceiver(end, memory, board, address.nbytes, close)
        return PoolReceiver(end, PeerMemory(pointer, device), board, address.nbytes, close)


def _id_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _nothing() -> None:
    pass
