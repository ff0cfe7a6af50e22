"""Collectives of `torch.distributed`: gloo on the CPU, NCCL on CUDA.

Shape legend: R rows, N outputs of one rank.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, Store, Work

from omni.device import SyncPoint, may_sync
from omni.errors import LostRankError, error_text
from omni.parallel.communicator import ARRIVED, Communicator, PendingReceive
from omni.parallel.rank_memory import RankMemory
from omni.parallel.watch import REMEDY

_RECORDER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Variables with the number of calls that torch's flight recorder keeps, which are read once in a process."""
_SEND_SECONDS = timedelta(seconds=5)
"""Time for others to receive sent tensors before the group is closed."""
_ARRIVED_SECONDS = timedelta(seconds=1)
"""Maximum time in which gloo reports that a tensor has arrived, on a busy host too."""


def open_communicator(
    store: Store,
    rank: int,
    size: int,
    device: torch.device,
    timeout_seconds: float,
    *,
    collectives: bool = True,
    transfers: Iterable[tuple[int, int]] | None = None,
    names: Sequence[str] | None = None,
) -> Communicator:
    """Connects the ranks of one group, each of which calls it with its own `rank`. Waits for all.

    store: shared by the ranks, and used by no other group (`dist.PrefixStore`). device: of the tensors. timeout_seconds: longest
    wait for other ranks, here and in collectives. collectives: whether the ranks use any. transfers: the ranks between which
    something is sent, and received; None for all pairs. Each connection takes memory on CUDA. names: of the ranks, for errors; None
    for those of a group of all ranks.

    Raises LostRankError if a rank is missing after that time.
    """
    timeout = timedelta(seconds=timeout_seconds)
    pairs = tuple(permutations(range(size), 2) if transfers is None else transfers)
    if names is None:
        names = names_of(range(size), size)
    with _lost_ranks(names, rank), _without_recorder():
        # NCCL would wait for a missing rank without a limit.
        store.set(f"rank {rank}", "here")
        store.wait([f"rank {other}" for other in range(size)], timeout)
        communicator: TorchCommunicator
        if device.type != "cuda":
            communicator = TorchCommunicator(dist.ProcessGroupGloo(store, rank, size, timeout), rank, names)
            _connect(communicator, device, collectives, pairs)
            return communicator
        with torch.cuda.device(device):
            communicator = NcclCommunicator(store, rank, names, timeout, device, sums=collectives)
            _connect(communicator, device, collectives, pairs)
            return communicator


@contextmanager
def _without_recorder() -> Iterator[None]:
    """The first group that a process opens while this is entered has torch record no calls of any group, unless the user sets a
    size: the Python stack of each call is a considerable part of its host time, and the timeline has the calls."""
    if any(name in os.environ for name in _RECORDER):
        yield
        return
    os.environ[_RECORDER[0]] = "0"
    try:
        yield
    finally:
        os.environ.pop(_RECORDER[0], None)


def names_of(ranks: Iterable[int], size: int) -> list[str]:
    """The names of ranks of a stage that has `size` ranks."""
    return [f"rank {rank} of {size}" for rank in ranks]


def _connect(
    communicator: Communicator, device: torch.device, collectives: bool, pairs: Iterable[tuple[int, int]]
) -> None:
    """Uses each connection once: the first use sets it up, which cannot be captured."""
    ones_11, rank = torch.ones(1, 1, device=device), communicator.rank
    if collectives:
        gathered_1R = communicator.all_gather(communicator.all_reduce(ones_11))
        with may_sync(SyncPoint.RANKS):
            assert gathered_1R.tolist() == [[float(communicator.size)] * communicator.size]
    for one, other in pairs:
        if rank == one:
            communicator.send(ones_11, other)
        elif rank == other:
            communicator.receive(ones_11, one).wait()


class TorchCommunicator:
    """A `Communicator` over a process group of its own: there is no global group. group: its backend. names: of its
    ranks, for errors."""

    def __init__(self, group: Any, rank: int, names: Sequence[str]) -> None:
        self._group = group
        self._rank, self._size = rank, len(names)
        self._names = names
        self._silent = False
        self._sent: deque[Work] = deque()
        """Transfers to other ranks that may be incomplete."""
        self._tags = Counter[tuple[int, str]]()
        self._sum, self._gather = AllreduceOptions(), AllgatherOptions()
        for options in (self._sum, self._gather):
            # NCCL then runs on the current stream instead of a stream of its own.
            options.asyncOp = False

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.numel() and not self._silent:
            self._run(self._group.allreduce, [x], self._sum)
        return x

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        return None

    def all_gather(self, x_RN: Tensor) -> Tensor:
        if self._silent or not x_RN.numel():
            return x_RN.repeat(1, self._size)
        return self._gathered(x_RN.contiguous()).transpose(0, 1).flatten(1)

    def send(self, x: Tensor, to: int) -> None:
        if self._silent or not x.numel():
            return
        while self._sent and self._sent[0].is_completed():
            self._sent.popleft()
        with _lost_ranks(self._names, self._rank, to):
            self._sent.append(self._group.send([x.clone()], to, self._tag(to, "sent")))

    def post(self, x: Tensor, to: int) -> None:
        self.send(x, to)

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        if self._silent or not x.numel():
            return ARRIVED
        with _lost_ranks(self._names, self._rank, source):
            work = self._group.recv([x], source, self._tag(source, "received"))
        return _Transfer(work, self._names, self._rank, source)

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def close(self) -> None:
        """Closes the group; a second call has no effect. No collective may be under way; sends may be."""
        group, self._group = self._group, None
        while self._sent:
            with suppress(RuntimeError):  # no rank receives it now
                self._sent.popleft().wait(_SEND_SECONDS)
        if group is not None:
            group.shutdown()

    def _gathered(self, x_RN: Tensor) -> Tensor:
        """Returns the tensors of all ranks, `[size, R, N]`."""
        parts = x_RN.new_empty(self._size, *x_RN.shape)
        self._run(self._group.allgather, [list(parts)], [x_RN], self._gather)
        return parts

    def _run(self, collective: Callable[..., Work], *arguments: object) -> None:
        with _lost_ranks(self._names, self._rank):
            collective(*arguments).wait()

    def _tag(self, other: int, way: str) -> int:
        """The number of a transfer: gloo may deliver those of one number in another order."""
        self._tags[other, way] += 1
        return self._tags[other, way] % 2**30


@dataclass(slots=True)
class _Transfer:
    """A tensor on its way from rank `source` to rank `rank`, by `names`."""

    work: Work
    names: Sequence[str]
    rank: int
    source: int
    completed: bool = False

    def done(self) -> bool:
        return self.completed

    def arrived(self) -> bool:
        # Gloo completes work only inside a wait, and a wait that times out ends all transfers.
        if not self.done():
            with suppress(RuntimeError):
                self.work.wait(_ARRIVED_SECONDS)
                self.completed = True
        return self.completed

    def wait(self) -> None:
        if self.done():
            return  # gloo would wait for the next message
        with _lost_ranks(self.names, self.rank, self.source):
            self.work.wait()
        self.completed = True


class NcclCommunicator(TorchCommunicator):
    """Collectives on the current stream of the current device, without a wait of the host. Small sums go through the memory of the
    other devices (`RankMemory`) where they can reach each other, the rest through NCCL. A thread of the group ends the process if a
    collective of NCCL takes longer than the time limit; it does not see those of captured graphs."""

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[str],
        timeout: timedelta,
        device: torch.device,
        *,
        sums: bool = True,
    ) -> None:
        """sums: whether small sums go through the memory of the other devices."""
        # Transfers run at high priority, since another GPU waits for them.
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=not sums)
        options._timeout = timeout
        if not sums:
            # The kernel of a receive that was launched early occupies a multiprocessor with each thread block until the tensor
            # arrives. With NCCL's default for 128 KiB, products beside it took 1.26 times as long on an H200; with one block, no
            # longer than alone (benchmarks/pending_receive.py).
            options.config.min_ctas = options.config.max_ctas = 1
        super().__init__(dist.ProcessGroupNCCL(store, rank, len(names), options), rank, names)
        self._peers = RankMemory.open(store, rank, len(names), device, timeout) if sums else None

    def all_reduce(self, x: Tensor) -> Tensor:
        peers = self.rank_memory(x)
        return super().all_reduce(x) if peers is None else peers.all_reduce(x)

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        peers = self._peers
        return peers if peers is not None and peers.takes(x) and not self._silent else None

    def send(self, x: Tensor, to: int) -> None:
        if x.numel() and not self._silent:
            self._transfer(self._group.send, x, to)

    def post(self, x: Tensor, to: int) -> None:
        if x.numel() and not self._silent:
            self._transfer(self._group.send, x, to, waits=False)

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        if x.numel() and not self._silent:
            self._transfer(self._group.recv, x, source)
        return ARRIVED

    def _transfer(self, transfer: Callable[..., Work], x: Tensor, other: int, waits: bool = True) -> None:
        """waits: whether the current stream waits; the host does not. NCCL has one stream for each pair of ranks."""
        try:  # a context manager is a considerable part of the host's time in a transfer
            work = transfer([x], other, 0)
            if waits:
                work.wait()
        except dist.DistError as error:
            raise _lost(self._names, self._rank, other, error) from error

    def _gathered(self, x_RN: Tensor) -> Tensor:
        parts = x_RN.new_empty(self._size, *x_RN.shape)
        self._run(self._group._allgather_base, parts, x_RN, self._gather)
        return parts

    def _run(self, collective: Callable[..., Work], *arguments: object) -> None:
        # No wait is necessary: the stream orders the collective before later work.
        with _lost_ranks(self._names, self._rank, errors=dist.DistError):
            collective(*arguments)

    def close(self) -> None:
        """No effect: the group and the mapped memory end with the process. NCCL's own end waits for captured graphs with its
        collectives."""


@contextmanager
def _lost_ranks(
    names: Sequence[str], rank: int, other: int | None = None, errors: type[RuntimeError] = RuntimeError
) -> Iterator[None]:
    """rank, other: by `names`; None for any other rank. errors: those of the library that are about other ranks."""
    try:
        yield
    except errors as error:
        raise _lost(names, rank, other, error) from error


def _lost(names: Sequence[str], rank: int, other: int | None, error: Exception) -> LostRankError:
    """rank, other: as for `_lost_ranks`."""
    lost = [name for index, name in enumerate(names) if index != rank and other in (None, index)]
    return LostRankError(f"{names[rank]} has lost {' or '.join(lost)}; {REMEDY} ({error_text(error)})")
