"""The front end's view of an engine, in this process or in another."""

from collections.abc import Mapping
from typing import Protocol

from omni.engine.memory import StageMemory
from omni.engine.request import EngineRequest, Sink
from omni.errors import OmniError
from omni.sampling import SamplingParams
from omni.stage import StageUsage


class EngineClient(Protocol):
    """See `Engine` for the methods; any thread may call them. Only `start` precedes `submit`."""

    @property
    def memory(self) -> Mapping[str, StageMemory]: ...

    @property
    def takes_text_rules(self) -> bool:
        """Whether requests carry `text_rules` instead of `rules`."""
        ...

    def start(self) -> None: ...

    def submit(self, request: EngineRequest, sink: Sink) -> None: ...

    def abort(self, request_id: str, error: OmniError) -> None: ...

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None: ...

    def longest_prompt(self, stage: str) -> int | None: ...

    def usage(self) -> Mapping[str, StageUsage]: ...

    def counters(self) -> Mapping[str, Mapping[str, int]]: ...

    @property
    def idle(self) -> bool: ...

    def close(self) -> None: ...
