"""Records of one step. Immutable: deferred work reads these, and of a request only what its opening fixed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Event, HostSlot
from omni_ar.run.blocks import BlockTable
from omni_ar.run.request import ArRequest
from omni_ar.run.rows import Row
from omni_ar.sampling import SamplingFlags


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request as this step saw it. index: which of its output tokens this step samples, from 0. emits_hidden: the hidden
    states of its prompt are complete with this step, and wanted."""

    request: ArRequest
    row: Row
    table: BlockTable
    index: int
    emits_hidden: bool


def snapshot(request: ArRequest) -> Scheduled:
    """The request as the step being planned sees it."""
    assert request.row is not None
    return Scheduled(request, request.row, request.held, request.scheduled, request.wants_hidden)


def flags_of(requests: Sequence[ArRequest]) -> SamplingFlags:
    """What sampling work these requests need."""
    params = [request.sampling for request in requests]
    return SamplingFlags(
        any_random=any(p.temperature != 0 for p in params),
        any_top_k=any(p.top_k != 0 for p in params),
        any_top_p=any(p.top_p != 1 for p in params),
        any_penalty=any(p.repetition_penalty != 1 for p in params),
        any_suppressed=any(p.suppress_token_ids for p in params),
    )


@dataclass(frozen=True, slots=True)
class StepContext:
    """What `execute_model` leaves for `sample_tokens`: nothing about a step lives anywhere else between the two.

    rows: those that are sampled, perhaps none: the step may hold nothing but chunks that do not reach their prompt's end.
    """

    step: int
    rows: tuple[Scheduled, ...]
    rows_R: Tensor
    advance_R: Tensor
    flags: SamplingFlags


@dataclass(frozen=True, slots=True)
class TokenHandoff:
    """The early handoff: ids are on the device already as the next step's input; `host` has them once `ready` is done."""

    host: HostSlot
    ready: Event

    def read(self, count: int) -> NDArray[np.int64]:
        """int64 `[count, 2]`: id and status of each row. Only once `ready` is done."""
        return self.host.read()[:count].view(np.int64)


@dataclass(frozen=True, slots=True)
class PayloadHandoff:
    """The deferred handoff: pages written by this step, complete when `ready` is done. Shares nothing with the token handoff."""

    hidden: Tensor | None
    codes: Tensor | None
    ready: Event


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A launched step. end: nothing of it is left to run."""

    rows: tuple[Scheduled, ...]
    tokens: TokenHandoff
    payload: PayloadHandoff | None
    end: Event
