"""The ranks of a stage in threads of one process, for tests."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, Queue

import torch
from torch import Tensor

from omni.parallel import EqualRanks, PendingReceive, PipelineRank, RankLayout, Ranks
from omni.parallel.communicator import ARRIVED
from omni.parallel.rank_memory import RankMemory
from omni.stage import StageWorker

_SECONDS = 120.0


class _Meeting:
    """The memory through which ranks exchange tensors. Each collective is two barriers: all have given, and all have taken."""

    def __init__(self, size: int, seconds: float) -> None:
        self.barrier = threading.Barrier(size, timeout=seconds)
        self.given: list[Tensor | None] = [None] * size
        ranks = range(size)
        self.sent: dict[tuple[int, int], Queue[Tensor | None]] = {(a, b): Queue() for a in ranks for b in ranks}
        """Tensors by sending and receiving rank; None marks the end."""
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A receive under way. x: the destination. sent: the queue that the tensor comes through."""

    x: Tensor
    sent: "Queue[Tensor | None]"
    seconds: float

    def done(self) -> bool:
        return not self.sent.empty()

    def arrived(self) -> bool:
        return self.done()

    def wait(self) -> None:
        try:
            given = self.sent.get(timeout=self.seconds)
        except Empty:
            given = None
        if given is None:
            raise threading.BrokenBarrierError
        if (given.shape, given.dtype) != (self.x.shape, self.x.dtype):
            raise AssertionError(f"received {given.dtype} {list(given.shape)} for {self.x.dtype} {list(self.x.shape)}")
        self.x.copy_(given)


class ThreadCommunicator:
    """A `Communicator` of ranks in threads. A rank that fails, or comes too late, makes the others raise BrokenBarrierError."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self._silent = False
        self.calls = 0
        """Number of collectives so far."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._meeting.given)

    def all_reduce(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        if self._silent:
            return x
        given = self._exchange(x)
        total = given[0]
        for each in given[1:]:
            total = total + each
        return total

    def rank_memory(self, x: Tensor) -> RankMemory | None:
        return None

    def all_gather(self, x_RN: Tensor) -> Tensor:
        given = [x_RN] * self.size if self._silent else self._exchange(x_RN)
        return torch.cat(given, 1)

    def send(self, x: Tensor, to: int) -> None:
        assert x.is_contiguous()
        if not self._silent:
            self.calls += 1
            self._meeting.sent[self._rank, to].put(x.clone())

    def post(self, x: Tensor, to: int) -> None:
        self.send(x, to)

    def receive(self, x: Tensor, source: int) -> PendingReceive:
        assert x.is_contiguous()
        if self._silent:
            return ARRIVED
        return _Transfer(x, self._meeting.sent[source, self._rank], self._meeting.seconds)

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def close(self) -> None:
        self._meeting.barrier.abort()
        for other in range(self.size):
            self._meeting.sent[self._rank, other].put(None)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.calls += 1
        self._meeting.given[self._rank] = x.clone()
        self._meeting.barrier.wait()
        given = [each for each in self._meeting.given if each is not None]
        self._meeting.barrier.wait()
        if any((each.shape, each.dtype) != (x.shape, x.dtype) for each in given):
            shapes = ", ".join(f"{each.dtype} {list(each.shape)}" for each in given)
            raise AssertionError(f"the ranks are at different collectives: {shapes}")
        return given


class QueueChannel:
    """A `RankChannel` of ranks in threads."""

    def __init__(self, followers: int) -> None:
        self._queues = [deque[bytes]() for _ in range(followers)]
        self._own: deque[bytes] = deque()

    def follower(self, index: int) -> "QueueChannel":
        """The end of the follower, from 0."""
        end = QueueChannel(0)
        end._own = self._queues[index]
        return end

    @property
    def descriptor(self) -> int | None:
        return None

    def send(self, message: bytes) -> None:
        for queue in self._queues:
            queue.append(message)

    def take(self) -> bytes | None:
        return self._own.popleft() if self._own else None

    def close(self) -> None:
        pass


def thread_ranks(layout: RankLayout | int, seconds: float = _SECONDS) -> list[Ranks]:
    """The ranks of a stage, each for a thread of its own. layout: a number divides each layer into so many shards. seconds: time
    limit of a collective."""
    if isinstance(layout, int):
        layout = RankLayout(layout)
    everyone, queues = _Meeting(layout.size, seconds), QueueChannel(layout.size - 1)
    channels = [queues, *(queues.follower(index) for index in range(layout.size - 1))]
    tensors = [_Meeting(layout.tensor, seconds) for _ in range(layout.pipeline)]
    transfers = [[_Meeting(layout.pipeline, seconds) for _ in range(2)] for _ in range(layout.tensor)]
    ranks: list[Ranks] = []
    for rank in range(layout.size):
        position, shard = layout.position(rank), rank % layout.tensor
        communicator = ThreadCommunicator(everyone, rank)
        tensor, pipeline = None, None
        if layout.tensor > 1:
            tensor = ThreadCommunicator(tensors[position], shard)
        if layout.pipeline > 1:
            hidden, tokens = (ThreadCommunicator(meeting, position) for meeting in transfers[shard])
            pipeline = PipelineRank(position=position, size=layout.pipeline, hidden=hidden, tokens=tokens)
        own = EqualRanks(
            rank=rank,
            size=layout.size,
            communicator=communicator,
            channel=channels[rank],
            tensor=tensor,
            pipeline=pipeline,
        )
        ranks.append(own)
    return ranks


class RankThread:
    """Calls `tick` of a follower's worker in a thread, as its engine would. error: of `tick`, which ends it."""

    def __init__(self, worker: StageWorker) -> None:
        self.error: BaseException | None = None
        self._worker = worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends it after the steps of the messages that have arrived."""
        self._ended.set()
        self._thread.join(_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"a follower does not end: {self._worker.usage()}")

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._worker.tick() or self._busy or not self._ended.is_set():
                    # Also after the end: a worker that stays busy does not take the interpreter from all other tests.
                    time.sleep(0.0005)
        except BaseException as error:
            self.error = error

    @property
    def _busy(self) -> bool:
        return any(self._worker.usage().values())
