"""A stage whose worker is watched: its inputs, and the outputs that it hands to the engine, before edges change them."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from omni.engine import Plan
from omni.payload import GeneratedTokens, Payload
from omni.sampling import SamplingParams
from omni.stage import (
    Feed,
    Footprint,
    LoadedStage,
    Produced,
    RowCost,
    RowStage,
    StageContext,
    StageKind,
    StageUsage,
    StageWorker,
)
from omni.stage.messages import Inbound, Outbound


@dataclass(slots=True)
class Watch:
    """Log of a stage. inputs: by request. tokens: ids that it generated, by request. most_requests: at the stage at one time."""

    inputs: dict[str, list[Payload]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    most_requests: int = 0

    def watched(self, plan: Plan, stage: str) -> Plan:
        """The plan with the stage's worker watched."""
        return replace(plan, kinds={**plan.kinds, stage: _WatchedKind(plan.kinds[stage], self)})

    def take(self, message: Outbound) -> None:
        if isinstance(message, Produced) and isinstance(message.payload.meta, GeneratedTokens):
            self.tokens.setdefault(message.request_id, []).extend(message.payload.meta.ids)


class _WatchedKind:
    def __init__(self, kind: StageKind, watch: Watch) -> None:
        self.name = kind.name
        self.options: type[msgspec.Struct] = kind.options
        self._kind = kind
        self._watch = watch

    def load(self, context: StageContext) -> LoadedStage:
        stage = self._kind.load(context)
        return (
            _WatchedRowStage(stage, self._watch) if isinstance(stage, RowStage) else _WatchedStage(stage, self._watch)
        )


class _WatchedStage:
    def __init__(self, stage: LoadedStage, watch: Watch) -> None:
        self._stage = stage
        self._watch = watch

    @property
    def footprint(self) -> Footprint:
        return self._stage.footprint

    def measure(self) -> int:
        return self._stage.measure()

    def start(self, pages: int) -> StageWorker:
        return _WatchedWorker(self._stage.start(pages), self._watch)


class _WatchedRowStage(_WatchedStage):
    def __init__(self, stage: RowStage, watch: Watch) -> None:
        super().__init__(stage, watch)
        self._row_stage = stage

    @property
    def rows(self) -> int:
        return self._row_stage.rows

    @property
    def chosen_rows(self) -> int | None:
        return self._row_stage.chosen_rows

    def count_row(self) -> RowCost:
        return self._row_stage.count_row()

    def set_rows(self, rows: int) -> None:
        self._row_stage.set_rows(rows)


class _WatchedWorker:
    """Shares the inbox and the outbox of its worker."""

    def __init__(self, worker: StageWorker, watch: Watch) -> None:
        self.inbox: deque[Inbound] = worker.inbox
        self.outbox: deque[Outbound] = worker.outbox
        self._worker = worker
        self._watch = watch

    @property
    def longest_prompt(self) -> int | None:
        return self._worker.longest_prompt

    def tick(self) -> bool:
        return self._watched(self._worker.tick)

    def poll(self) -> bool:
        return self._watched(self._worker.poll)

    def _watched(self, call: Callable[[], bool]) -> bool:
        inputs = [message for message in self.inbox if isinstance(message, Feed)]
        before = len(self.outbox)
        moved = call()
        if not self.inbox:  # a stage may leave out `poll`, which leaves the inputs to `tick`
            for arrived in inputs:
                self._watch.inputs.setdefault(arrived.request_id, []).append(arrived.payload)
        for sent in list(self.outbox)[before:]:
            self._watch.take(sent)
        self._watch.most_requests = max(self._watch.most_requests, self._worker.usage().get("requests", 0))
        return moved

    def check(self, sampling: SamplingParams, field: str) -> None:
        self._worker.check(sampling, field)

    def usage(self) -> StageUsage:
        return self._worker.usage()

    def counters(self) -> Mapping[str, int]:
        return self._worker.counters()

    def close(self) -> None:
        self._worker.close()
