"""The connector of two processes of a host, with any devices: a pool of shared memory, pinned at both ends.

The sender copies payloads off its device into the pool, the receiver copies them onto its own. On the CPU a consumer
reads small payloads in the pool itself. `omni.connector.pool` has the owners of the pool's ranges.

The memory has no name: it is reached through its descriptor in the sender's process, and freed with the last mapping.
"""

import mmap
import os

import numpy as np
import torch
from torch import Tensor

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, PoolReceiver, PoolSender, TensorMemory
from omni.errors import ConfigError
from omni.ipc.memory import SharedMemoryAddress, create_memory

_POOLS: dict[int, tuple[mmap.mmap, Tensor]] = {}
"""Pools of the senders in this process, by descriptor: a receiver beside its sender uses the same tensor."""


class SharedMemoryConnector:
    reach = Reach.HOST
    raw_device_tensors = False

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        """Raises ConfigError if the system has insufficient memory for the pool."""
        try:
            descriptor, mapping = create_memory(BOARD_BYTES + end.pool_bytes, "omni-edge")
        except OSError as error:
            raise ConfigError(f"{end.edge}: pool_bytes", f"{end.pool_bytes:,}: {error}", "lower it") from error
        pool = _pool(mapping)
        unpin = end.device.pin(pool)
        _POOLS[descriptor] = mapping, pool

        def close() -> None:
            del _POOLS[descriptor]
            unpin()
            os.close(descriptor)

        address = SharedMemoryAddress(os.getpid(), descriptor, len(mapping))
        return PoolSender(
            end, pool=pool, board=np.frombuffer(mapping, np.uint64, BOARD_BYTES // 8), address=address, on_close=close
        )

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        """Raises ConfigError if the sender's memory cannot be reached."""
        assert isinstance(address, SharedMemoryAddress)
        if address.pid == os.getpid():
            mapping, pool = _POOLS[address.descriptor]
            unpin = _nothing
        else:
            try:
                mapping = address.map()
            except OSError as error:
                problem = f"cannot reach the memory of process {address.pid}: {error}"
                raise ConfigError(f"{end.edge}: connector", problem, "run both processes as one user") from error
            pool = _pool(mapping)
            unpin = end.device.pin(pool)
        board = np.frombuffer(mapping, np.uint64, BOARD_BYTES // 8)
        return PoolReceiver(
            end, memory=TensorMemory(pool, end.device.torch_device), board=board, pool_bytes=len(pool), on_close=unpin
        )


def _pool(mapping: mmap.mmap) -> Tensor:
    return torch.from_numpy(np.frombuffer(mapping, np.uint8, offset=BOARD_BYTES))


def _nothing() -> None:
    pass
