"""The host's record of a request, the media items that wait for encoding, which requests share, and outputs by content."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from omni.device import COMPLETED, Event
from omni.stage import Feed, Produced, together
from omni_encoder.inputs import MediaItem
from omni_encoder.options import EncoderOptions

Outputs: TypeAlias = Mapping[str, Tensor]
"""Outputs of `EncoderModel.encode` for one item. Each tensor owns its memory."""

ContentKey: TypeAlias = tuple[str, str]
"""A request's cache salt and the hash of a media item's content."""


class OutputCache:
    """Outputs of at most `capacity` bytes in total: the least recently used are evicted. An eviction only drops a reference: the
    worker keeps the tensors of a payload until it is free."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[ContentKey, Outputs] = OrderedDict()
        self.bytes_used = 0

    def get(self, key: ContentKey) -> Outputs | None:
        outputs = self._entries.get(key)
        if outputs is not None:
            self._entries.move_to_end(key)
        return outputs

    def add(self, key: ContentKey, outputs: Outputs) -> None:
        """Adds `outputs` under a new key, unless they alone exceed the capacity."""
        size = size_of(outputs)
        if size > self._capacity:
            return
        while self.bytes_used + size > self._capacity:
            self.bytes_used -= size_of(self._entries.popitem(last=False)[1])
        self._entries[key] = outputs
        self.bytes_used += size

    def clear(self) -> None:
        self._entries.clear()
        self.bytes_used = 0


def size_of(outputs: Outputs) -> int:
    return sum(tensor.nbytes for tensor in outputs.values())


_POLLED = 32
"""Maximum outputs that one tick checks: thousands may be held, most of them for a long time."""


@dataclass(frozen=True, slots=True)
class _Held:
    produced: Produced
    outputs: Outputs
    order: tuple[int, int]


class EmittedOutputs:
    """Keeps outputs until they are free, and counts their bytes, once for each request that shares them. They were allocated on the
    stage's stream, so their memory must not be released before readers on other streams are done: `Produced.free`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._held: deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        return self._bytes >= self._limit

    @property
    def first_order(self) -> tuple[int, int]:
        """The order of the first request with held outputs. At the limit, only requests up to this one may add outputs: otherwise
        that request could not progress, and the others progress after its end."""
        return min(held.order for held in self._held)

    def add(self, produced: Produced, outputs: Outputs, order: tuple[int, int]) -> None:
        self._held.append(_Held(produced, outputs, order))
        self._bytes += size_of(outputs)

    def poll(self) -> bool:
        """Drops outputs that are free. Returns whether there were any."""
        before = len(self._held)
        for _ in range(min(before, _POLLED)):
            held = self._held.popleft()
            if held.produced.free:
                self._bytes -= size_of(held.outputs)
            else:
                self._held.append(held)
        return len(self._held) < before

    def clear(self) -> None:
        self._held.clear()
        self._bytes = 0


@dataclass(slots=True, eq=False)
class EncoderRequest:
    """A request until its end. order: the serving order. paused: whether a consumer is behind. items: received ones.
    cached: not encoded for this request. waiting: not emitted yet. kept: cached outputs of a paused request, with the items'
    indexes."""

    id: str
    open_sources: set[str]
    order: tuple[int, int] = (0, 0)
    cache_salt: str = ""
    items: int = 0
    cached: int = 0
    waiting: int = 0
    paused: bool = False
    kept: list[tuple[int, Outputs]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for a job's outputs. index: of the item in the request."""

    request: EncoderRequest
    index: int


@dataclass(slots=True, eq=False)
class Job:
    """One piece of media to encode, for all requests with the same content. feed: the input that arrived first. isolated: whether
    it must run alone, because its last batch failed. after: the end of work on it that failed batches launched."""

    key: ContentKey
    item: MediaItem
    features: Mapping[str, Tensor]
    feed: Feed
    waiters: list[Waiter] = field(default_factory=list)
    launched: bool = False
    isolated: bool = False
    after: Event = COMPLETED

    @property
    def order(self) -> tuple[int, int]:
        return min(waiter.request.order for waiter in self.waiters)

    @property
    def paused(self) -> bool:
        return all(waiter.request.paused for waiter in self.waiters)


class JobQueue:
    """Jobs by content, in serving order, then in order of arrival, and kept until their outputs are complete."""

    def __init__(self, options: EncoderOptions) -> None:
        self._options = options
        self._jobs: dict[ContentKey, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, key: ContentKey, waiter: Waiter) -> bool:
        """Adds the waiter to the job with this content, if there is one."""
        job = self._jobs.get(key)
        if job is not None:
            job.waiters.append(waiter)
        return job is not None

    def add(self, job: Job) -> None:
        """Adds a job with new content, and takes ownership of its input's lease."""
        self._jobs[job.key] = job

    def leave(self, request: EncoderRequest) -> None:
        """Removes the request from every job. A job without requests is removed, unless it is on the device."""
        for key, job in list(self._jobs.items()):
            job.waiters = [waiter for waiter in job.waiters if waiter.request is not request]
            if not job.waiters and not job.launched:
                del self._jobs[key]
                job.feed.release(job.after)

    def next_batch(self, up_to: tuple[int, int] | None = None) -> list[Job]:
        """The first job whose features are ready, and others that may share its batch. up_to: the last order of the jobs."""
        batch: list[Job] = []
        length = 0
        waiting = [job for job in self._jobs.values() if not (job.launched or job.paused) and job.feed.arrived]
        if up_to is not None:
            waiting = [job for job in waiting if job.order <= up_to]
        for job in together(sorted(waiting, key=lambda job: job.order)):
            fits = length + job.item.length <= self._options.max_batch_length
            if not batch or (fits and job.item.batch_key == batch[0].item.batch_key):
                batch.append(job)
                length += job.item.length
            if len(batch) == self._options.max_batch_items:
                break
        return batch

    def remove(self, job: Job) -> None:
        del self._jobs[job.key]
