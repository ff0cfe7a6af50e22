"""A world under mixed traffic: a pipeline, what can be asked of it, and which settings make it hard."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from omni.device import Device
from omni.engine import EngineRequest, Sink
from omni.errors import OmniError
from omni.stage import StageUsage

Knobs = Mapping[str, Sequence[object]]
"""The values of each setting, by dotted path. The first value is the easiest."""

POOL = "pool_bytes"
"""The setting of all pools of a world."""
WHOLE = 64
"""Payloads, more than a request has."""


class AnyEngine(Protocol):
    """`Engine`, or what stands for several."""

    def submit(self, request: EngineRequest, sink: Sink) -> None: ...

    def abort(self, request_id: str, error: OmniError) -> None: ...

    def tick(self) -> bool: ...

    @property
    def idle(self) -> bool: ...

    def usage(self) -> Mapping[str, StageUsage]: ...

    def counters(self) -> Mapping[str, Mapping[str, int]]: ...

    def close(self) -> None: ...


class World(Protocol):
    """contents: how many different requests there are. Of one content, every request gets the same."""

    @property
    def name(self) -> str: ...

    @property
    def contents(self) -> int: ...

    @property
    def knobs(self) -> Knobs: ...

    def __hash__(self) -> int: ...

    def engine(self, device: Device, settings: Mapping[str, object]) -> AnyEngine: ...

    def request(self, content: int, request_id: str, priority: int) -> EngineRequest: ...


def ar_knobs(stage: str, block_size: int, ample: int, few: int) -> Knobs:
    """Settings of an autoregressive stage. few: blocks, enough for the longest request alone."""
    return {
        f"{stage}.max_in_flight": (1, 2, 4, 8),
        f"{stage}.graph_batch_sizes": ((), None, (1,)),
        f"{stage}.graph_chunk_sizes": ((), None, (3,)),
        f"{stage}.block_size": (block_size,),
        f"{stage}.num_blocks": (ample, few, few, few + 3),
        f"{stage}.max_num_batched_tokens": (2048, 3, 9),
        f"{stage}.prefix_cache": (True, False),
        f"{stage}.max_num_seqs": (4, 4, 3, 1),
    }


def pooled(settings: Mapping[str, object], *edges: tuple[str, str], connector: str = "shm") -> dict[str, object]:
    """Settings with pools of `POOL` bytes for edges."""
    options = dict(settings)
    pool_bytes = options.pop(POOL)
    for producer, consumer in edges:
        edge = f"edges.{producer}-{consumer}"
        options |= {f"{edge}.connector": connector, f"{edge}.pool_bytes": pool_bytes}
    return options
