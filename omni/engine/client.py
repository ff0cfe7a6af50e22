"""The contract of engines towards their callers."""

from collections.abc import Mapping
from typing import Protocol

from omni.engine.memory import StageMemory
from omni.engine.request import EngineRequest, Sink
from omni.engine.start import StartReport
from omni.errors import OmniError
from omni.sampling import SamplingParams
from omni.stage import StageUsage


class EngineClient(Protocol):
    """The interface of a model's engines to callers: an `Engine` in this process, or an `omni.process.EngineGroup`. See `Engine`
    for the methods; any thread may call them. `start` comes before the first `submit`."""

    @property
    def memory(self) -> Mapping[str, StageMemory]: ...

    @property
    def start_reports(self) -> Mapping[str, StartReport]:
        """The report of the latest start of each engine, by place."""
        ...

    @property
    def takes_text_rules(self) -> bool:
        """Whether requests carry `text_rules` instead of `rules`."""
        ...

    @property
    def failure(self) -> OmniError | None:
        """Why requests are refused until the model is opened again; None while they are taken."""
        ...

    @property
    def interruption(self) -> OmniError | None:
        """Why requests wait: the engine of a stage is being started again. None while all run."""
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
