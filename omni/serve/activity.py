"""The present work of the stages, read from the engine's counters a few times a second while someone watches."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress

import msgspec

from omni.api import AsyncOmni
from omni.errors import OmniError, shortened
from omni.serve.errors import ENGINE_FAILED
from omni.serve.limits import ServeLimits
from omni.utils.log import safe_logger

_log = safe_logger("omni.serve")

PERIOD_SECONDS = 0.2


class StageActivity(msgspec.Struct, frozen=True, kw_only=True):
    """usage: resources in use (requests, rows, ...). rates: growth of its counters per second since the last reading."""

    usage: Mapping[str, int]
    rates: Mapping[str, float]


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """at: seconds, on a clock that only grows. in_flight: answers under way. error: why the engine cannot be read."""

    at: float
    in_flight: int
    stages: Mapping[str, StageActivity]
    error: str | None = None


class ActivityFeed:
    """Readings that all watchers share: a second watcher adds no load to the engine, and without watchers there are no readings. It
    reads in another thread than the event loop's, one reading at a time, also while watchers come and go: an engine in a process of
    its own answers between two steps, and one that hangs would take all threads.

    For the event loop's thread. `end` ends the watchers, which otherwise run forever.
    """

    def __init__(self, omni: AsyncOmni, limits: ServeLimits) -> None:
        self._omni = omni
        self._limits = limits
        self._watchers: set[asyncio.Queue[Activity | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._before: tuple[float, Mapping[str, Mapping[str, int]]] | None = None

    @property
    def watched(self) -> bool:
        return self._task is not None

    async def watch(self) -> AsyncGenerator[Activity]:
        """A reading every `PERIOD_SECONDS`. A slow watcher skips readings."""
        if self._ended:
            return
        queue: asyncio.Queue[Activity | None] = asyncio.Queue(1)
        self._watchers.add(queue)
        if self._task is None:
            self._before = None
            self._task = asyncio.create_task(self._run())
        try:
            while (activity := await queue.get()) is not None:
                yield activity
        finally:
            self._watchers.discard(queue)

    def end(self) -> None:
        """Ends every watcher, and later ones at once."""
        self._ended = True
        self._give(None)

    async def _run(self) -> None:
        try:
            while self._watchers:
                self._give(await asyncio.to_thread(self._read))
                await asyncio.sleep(PERIOD_SECONDS)
        except Exception:
            _log.exception("the activity of the stages cannot be read")
            self._give(None)
        finally:
            self._task = None

    def _give(self, activity: Activity | None) -> None:
        """None ends the watchers."""
        for queue in self._watchers:
            # A new reading replaces one that was not taken. The end marker is never replaced.
            with suppress(asyncio.QueueEmpty):
                queue.get_nowait()
            queue.put_nowait(None if self._ended else activity)

    def _read(self) -> Activity:
        in_flight = self._limits.in_flight
        try:
            usage, counters = self._omni.usage(), self._omni.counters()
        except OmniError as error:
            self._before = None
            return Activity(at=time.perf_counter(), in_flight=in_flight, stages={}, error=shortened(str(error)))
        now = time.perf_counter()
        since, before = self._before or (now, counters)
        self._before = now, counters
        stages = {
            name: StageActivity(usage=held, rates=_rates(counters.get(name, {}), before.get(name, {}), now - since))
            for name, held in usage.items()
        }
        failed = ENGINE_FAILED if self._omni.failure is not None else None
        return Activity(at=now, in_flight=in_flight, stages=stages, error=failed)


def _rates(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Counters of a restarted engine begin at 0 again, so no rate is computed across the restart."""
    if seconds <= 0:
        return dict.fromkeys(now, 0.0)
    return {name: round(max(count - before.get(name, 0), 0) / seconds, 2) for name, count in now.items()}
