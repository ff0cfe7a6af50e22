"""Sums over ranks through the memory of their devices, which map each other's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from omni.device import SyncPoint, cuda_driver, may_sync
from omni.device.cuda_driver import CudaError
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

MOST_BYTES = 512 * 2**10
"""Larger sums are bound by bandwidth, and NCCL moves each byte once."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NONE = b"none"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of each rank, mapped by all ranks until the process ends, since other ranks may use it until then. Kernels sum through
    it (`omni.parallel.sum_kernel.tile_sum`). rank: of this process. bases: int64 `[size]` on its device: the memory's address in
    this process, by rank."""

    rank: int
    bases: Tensor
    most_bytes: int = MOST_BYTES

    @classmethod
    def open(cls, store: Store, rank: int, size: int, device: torch.device, timeout: timedelta) -> "RankMemory | None":
        """Waits for the other ranks. None if a device cannot map the memory of another, as then at every rank."""
        from omni.parallel import sum_kernel

        nbytes = sum_kernel.bytes_needed(size, MOST_BYTES)
        index = device.index or 0
        # Torch has its context from now on: without one, the driver frees the memory at once.
        torch.zeros(1, device=device)
        try:
            own = cuda_driver.allocate(index, nbytes)
            memory = cuda_driver.as_tensor(own, nbytes, device).zero_()
            with may_sync(SyncPoint.RANKS):
                assert not memory[-1].item()  # before another rank writes there
            given = cuda_driver.export(index, own)
        except CudaError as error:
            _log.warning("rank %d sums through NCCL alone: %s", rank, error)
            own, given = 0, _NONE
        handles = _exchange(store, "memory", rank, size, given, timeout)
        others: dict[int, int] = {}
        try:
            if _NONE not in handles:
                for other, handle in enumerate(handles):
                    if other != rank:
                        others[other] = cuda_driver.open_handle(index, handle)
        except CudaError as error:
            _log.warning("rank %d sums through NCCL alone: %s", rank, error)
        mapped = b"yes" if len(others) == size - 1 else b"no"
        if b"no" in _exchange(store, "mapped", rank, size, mapped, timeout):
            for address in others.values():
                cuda_driver.close_handle(index, address)
            if own:
                cuda_driver.free(index, own)
            return None
        bases = [own if other == rank else others[other] for other in range(size)]
        return cls(rank, torch.tensor(bases, dtype=torch.int64, device=device))

    def takes(self, x: Tensor) -> bool:
        """Whether tensors of the dtype and size of `x` are summed through it."""
        return x.dtype in _DTYPES and 0 < x.nbytes <= self.most_bytes

    def all_reduce(self, x: Tensor) -> Tensor:
        """As of a `Communicator`. x: which `takes` accepts, contiguous."""
        from omni.parallel import sum_kernel

        return sum_kernel.all_reduce(x, self.bases, self.rank, self.most_bytes)


def _exchange(store: Store, name: str, rank: int, size: int, given: bytes, timeout: timedelta) -> Sequence[bytes]:
    """The contributions of all ranks, in rank order."""
    store.set(f"{name} {rank}", given.hex())
    keys = [f"{name} {other}" for other in range(size)]
    store.wait(keys, timeout)
    return [bytes.fromhex(store.get(key).decode()) for key in keys]
