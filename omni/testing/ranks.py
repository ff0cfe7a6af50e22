"""The ranks of a stage in threads of one process, for tests."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from omni.parallel import EqualRanks, Ranks
from omni.stage import StageWorker

_SECONDS = 30.0


class _Meeting:
    """Where the ranks exchange tensors. Each collective is two barriers: all have given, and all have taken."""

    def __init__(self, size: int, seconds: float) -> None:
        self.barrier = threading.Barrier(size, timeout=seconds)
        self.given: list[Tensor | None] = [None] * size


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
        if self._silent:
            return x
        given = self._exchange(x)
        total = given[0]
        for each in given[1:]:
            total = total + each
        return total

    def all_gather(self, x_RN: Tensor) -> Tensor:
        given = [x_RN] * self.size if self._silent else self._exchange(x_RN)
        return torch.cat(given, 1)

    def broadcast(self, x: Tensor) -> None:
        if not self._silent:
            x.copy_(self._exchange(x)[0])

    @contextmanager
    def silent(self) -> Iterator[None]:
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def close(self) -> None:
        self._meeting.barrier.abort()

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

    def take(self) -> Sequence[bytes]:
        taken = []
        while self._own:
            taken.append(self._own.popleft())
        return taken

    def close(self) -> None:
        pass


def thread_ranks(size: int, seconds: float = _SECONDS) -> list[Ranks]:
    """The ranks of a stage, each for a thread of its own. seconds: time limit of a collective."""
    meeting, channel = _Meeting(size, seconds), QueueChannel(size - 1)
    channels = [channel, *(channel.follower(index) for index in range(size - 1))]
    return [
        EqualRanks(rank=rank, size=size, communicator=ThreadCommunicator(meeting, rank), channel=channels[rank])
        for rank in range(size)
    ]


class RankThread:
    """Calls `tick` of a follower's worker in a thread, as its engine would. error: what `tick` raised, which ends it."""

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
                    self._ended.wait(0.0005)
        except BaseException as error:
            self.error = error

    @property
    def _busy(self) -> bool:
        return any(self._worker.usage().values())
