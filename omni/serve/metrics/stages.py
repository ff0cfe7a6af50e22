"""Usage and counters of the stages, as metrics."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from omni.api import AsyncOmni
from omni.errors import OmniError
from omni.pipeline import FRONTEND
from omni.serve.limits import ServeLimits
from omni.utils.draft_counts import DraftCounts
from omni.utils.duration_counts import BOUNDS_US, DurationCounts

_PATIENCE_SECONDS = 2.0
"""Time limit for the engine's answer, which it sends between two turns of its loop."""
_HITS, _QUERIES, _HELD = "cached_tokens", "prompt_tokens", "cached_blocks"
"""Counters of a stage with a prefix cache. The last is the only one that falls."""
_SAMPLING = "sample_tokens"
"""Name of `DurationCounts` of an autoregressive stage."""


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers by stage and name."""

    usage: Mapping[str, Mapping[str, int]]
    counters: Mapping[str, Mapping[str, int]]


class StageCollector(Collector):
    """One question to the engine is under way at a time. Without an answer the metrics of stages are omitted and counted in
    `omni_stages_unread_total`: stale values would look like an idle engine."""

    def __init__(self, omni: AsyncOmni, limits: ServeLimits) -> None:
        self._omni = omni
        self._limits = limits
        self._reading: asyncio.Task[_Numbers | None] | None = None
        self._numbers: _Numbers | None = None
        self._unread = 0

    async def read(self) -> None:
        """Reads the stages' numbers, which `collect` returns."""
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._read))
        reading = self._reading
        await asyncio.wait({reading}, timeout=_PATIENCE_SECONDS)
        if reading.done() and self._reading is reading:
            self._reading = None  # before its error, which the next scrape would raise again
        self._numbers = reading.result() if reading.done() else None
        self._unread += self._numbers is None

    def collect(self) -> Iterator[Metric]:
        yield from (self._memory(), self._capacity())
        unread = CounterMetricFamily("omni_stages_unread", "Questions to the stages without an answer in time.")
        unread.add_metric((), self._unread)
        yield unread
        numbers = self._numbers
        if numbers is None:
            return
        yield from self._usage(numbers)
        yield from self._counters(numbers)

    def describe(self) -> Iterator[Metric]:
        """Empty: without this method the registry would collect at once to learn the names."""
        return iter(())

    def _read(self) -> _Numbers | None:
        try:
            return _Numbers(self._omni.usage(), self._omni.counters())
        except OmniError:
            # The engine is closed, or a stage's plugin fails: the log and /health have the reason.
            return None

    def _memory(self) -> Metric:
        memory = GaugeMetricFamily(
            "omni_stage_memory_bytes", "Device memory of a stage, divided at the start.", labels=("stage", "part")
        )
        for stage, bytes_ in self._omni.memory.items():
            pages = bytes_.page_bytes * bytes_.pages
            parts = {"weights": bytes_.weights, "fixed": bytes_.fixed, "working": bytes_.working, "pages": pages}
            for part, count in parts.items():
                if count is not None:
                    memory.add_metric((stage, part), count)
        return memory

    def _capacity(self) -> Metric:
        capacity = GaugeMetricFamily(
            "omni_stage_capacity", "The most that a stage can hold at once.", labels=("stage", "resource")
        )
        for stage, memory in self._omni.memory.items():
            for resource, count in (("rows", memory.rows), ("pages", memory.pages)):
                if count:
                    capacity.add_metric((stage, resource), count)
        return capacity

    def _usage(self, numbers: _Numbers) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("omni_requests_waiting", "Requests that are not at the stages yet.")
        waiting_bytes = GaugeMetricFamily("omni_requests_waiting_bytes", "Host memory of the waiting requests.")
        usage = GaugeMetricFamily(
            "omni_stage_usage", "Resources in use at a stage; 0 when idle.", labels=("stage", "resource")
        )
        running = GaugeMetricFamily("omni_requests_running", "Answers under way that do not wait.")
        for stage, held in numbers.usage.items():
            if stage == FRONTEND:
                waiting.add_metric((), held["requests"])
                waiting_bytes.add_metric((), held["bytes"])
                running.add_metric((), max(self._limits.in_flight - held["requests"], 0))
                continue
            for name, count in held.items():
                usage.add_metric((stage, name), count)
        yield from (waiting, waiting_bytes, running, usage)

    def _counters(self, numbers: _Numbers) -> Iterator[Metric]:
        done = CounterMetricFamily("omni_stage_events", "Counters of a stage.", labels=("stage", "event"))
        hits = CounterMetricFamily(
            "omni_prefix_cache_hit_tokens", "Prompt tokens found in the cache.", labels=("stage",)
        )
        queries = CounterMetricFamily("omni_prefix_cache_query_tokens", "Prompt tokens looked up.", labels=("stage",))
        cached = GaugeMetricFamily("omni_prefix_cache_blocks", "Blocks in the prefix cache.", labels=("stage",))
        at = ("stage", "position")
        drafted = CounterMetricFamily("omni_drafted_tokens", "Drafts that were verified, by position.", labels=at)
        accepted = CounterMetricFamily("omni_accepted_drafts", "Drafts that became tokens, by position.", labels=at)
        sampling = HistogramMetricFamily(
            "omni_sample_tokens_seconds", "Host time of `sample_tokens`.", labels=("stage",)
        )
        for stage, counts in numbers.counters.items():
            for name, count in counts.items():
                if name != _HELD and not name.startswith(f"{_SAMPLING}_"):
                    done.add_metric((stage, name), count)
            if _HITS in counts and _QUERIES in counts:
                hits.add_metric((stage,), counts[_HITS])
                queries.add_metric((stage,), counts[_QUERIES])
            drafts = DraftCounts.of(counts)
            for position in range(len(drafts.drafted)):
                drafted.add_metric((stage, str(position + 1)), drafts.drafted[position])
                accepted.add_metric((stage, str(position + 1)), drafts.accepted[position])
            if _HELD in counts:
                cached.add_metric((stage,), counts[_HELD])
            if f"{_SAMPLING}_us" in counts:
                times = DurationCounts.of(_SAMPLING, counts)
                sampling.add_metric((stage,), _buckets(times), sum_value=times.nanoseconds / 1e9)
        yield from (done, hits, queries, drafted, accepted, cached, sampling)


def _buckets(times: DurationCounts) -> list[tuple[str, int]]:
    """Bound in seconds and number of durations up to it, as Prometheus counts."""
    bounds = [*(str(bound / 1e6) for bound in BOUNDS_US), "+Inf"]
    return list(zip(bounds, accumulate(times.counts), strict=True))
