"""Decides what runs in the next step. Host only; knows upper bounds, never device state."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from omni.errors import InputError
from omni_ar.run.blocks import BlockPool, RowTable
from omni_ar.run.request import ArRequest


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: rows that decode one token, then requests whose whole prompt runs."""

    step: int
    decodes: tuple[ArRequest, ...]
    prefills: tuple[ArRequest, ...]

    @property
    def requests(self) -> tuple[ArRequest, ...]:
        """In the order of the batch's rows."""
        return self.decodes + self.prefills


class Scheduler:
    """First come, first served. A request is admitted with the blocks of its longest possible output, so none is ever evicted."""

    def __init__(
        self, rows: RowTable, blocks: BlockPool, block_size: int, prompt_budget: int, conditioned: bool
    ) -> None:
        self._rows = rows
        self._blocks = blocks
        self._block_size = block_size
        self._prompt_budget = prompt_budget
        self._conditioned = conditioned
        self._waiting: deque[ArRequest] = deque()
        self._running: dict[str, ArRequest] = {}
        self._steps = 0

    def check(self, request: ArRequest, max_model_len: int, stage: str) -> None:
        """Sets the request's token limit. Raises InputError if it can never run here. stage: its name, for errors."""
        assert request.prompt is not None
        length = request.prompt.length
        if length < 1:
            raise InputError("prompt", "is empty", "give at least one token")
        if length >= max_model_len:
            problem = f"has {length} tokens, and {stage} takes {max_model_len} with at least one generated"
            raise InputError("prompt", problem, f"shorten it or raise {stage}.max_model_len")
        assert request.sampling.max_tokens is not None
        request.max_tokens = min(request.sampling.max_tokens, max_model_len - length)
        if self._need(request) > self._blocks.capacity:
            total = length + request.max_tokens
            need, has = self._need(request), self._blocks.capacity
            problem = f"prompt and output of {total} tokens need {need} blocks, and {stage} has {has}"
            raise InputError(f"sampling.{stage}.max_tokens", problem, f"ask for fewer or raise {stage}.num_blocks")

    def add(self, request: ArRequest) -> None:
        """Queues a checked request whose prompt is ready."""
        self._waiting.append(request)

    def remove(self, request: ArRequest) -> None:
        """Forgets a request, if it is here. Its row and blocks stay with the caller."""
        if self._running.pop(request.id, None) is None and request in self._waiting:
            self._waiting.remove(request)

    def plan(self) -> StepPlan | None:
        """What can run now, or None."""
        decodes = tuple(r for r in self._running.values() if r.can_step(self._conditioned))
        prefills = tuple(self._admit())
        if not decodes and not prefills:
            return None
        self._steps += 1
        return StepPlan(self._steps, decodes, prefills)

    def _admit(self) -> list[ArRequest]:
        admitted: list[ArRequest] = []
        budget = self._prompt_budget
        while self._waiting:
            request = self._waiting[0]
            assert request.prompt is not None
            too_long = request.prompt.length > budget and admitted
            if too_long or not self._rows.available or self._need(request) > self._blocks.available:
                break
            budget -= request.prompt.length
            request.row = self._rows.allocate()
            request.blocks = np.array(self._blocks.allocate(self._need(request)), np.int64)
            self._running[request.id] = self._waiting.popleft()
            admitted.append(request)
        return admitted

    def _need(self, request: ArRequest) -> int:
        assert request.prompt is not None
        return -(-(request.prompt.length + request.max_tokens) // self._block_size)
