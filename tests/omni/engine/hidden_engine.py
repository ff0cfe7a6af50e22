"""An engine of the hidden-state family, ticked by the test, and its expected outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import Device
from omni.engine import (
    EngineOutput,
    EngineRequest,
    Plan,
    StageOutput,
)
from omni.payload import GeneratedTokens, Payload
from omni.sampling import SamplingParams
from omni.testing.engines import GIVEN_UP, TickedEngine
from tests.support.ar_driver import plain_prompt
from tests.support.hidden_family import HOST_READER, MODALITIES, READER, WRITER, hidden_plugins, model_of
from tests.support.hidden_model import Reading, ReadOut
from tests.support.omni_engine import Result
from tests.support.small_text import greedy

TOLERANCE = 1e-5
"""Of weighted sums over a row, which are of the order of 1: batches add float32 numbers up in different orders."""


@dataclass(slots=True)
class HiddenResult(Result):
    """readings: by modality, in order."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    others: list[object] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return self.ids

    @property
    def reason(self) -> str:
        """Why its text ended."""
        return self.stages[WRITER].reason

    def take(self, output: EngineOutput) -> None:
        Result.take(self, output)
        if self.error is not None and self.error is not GIVEN_UP:
            raise self.error

    def _take_chunk(self, meta: object) -> None:
        match meta:
            case GeneratedTokens(ids=ids):
                self.ids += ids
            case Reading():
                self.readings.setdefault(self.log[-1], []).append(meta)
            case other:
                self.others.append(other)

    def read(self, modality: str, *, prompt: bool = False) -> NDArray[np.float32]:
        """The numbers `[n, N]` of the rows of generated tokens, or of the prompt. Checks that they arrived one by one, in order."""
        found = [reading for reading in self.readings.get(modality, []) if reading.prompt == prompt]
        assert [reading.index for reading in found] == list(range(len(found)))
        return np.array([reading.numbers for reading in found], np.float32)


Requests = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Prompts, and the positions of each whose hidden states are read too."""


class HiddenEngine(TickedEngine):
    run = TickedEngine.run_to_end

    def __init__(
        self,
        folder: Path,
        overrides: Mapping[str, object] | None = None,
        device: Device | None = None,
        change: Callable[[Plan], Plan] = lambda plan: plan,
        **options: Any,
    ) -> None:
        super().__init__(folder, hidden_plugins(), overrides, device, change, **options)
        self.model = model_of(self.checkpoint)
        self.modalities = frozenset(output.modality for output in self.plan.pipeline.outputs)
        self.log: list[tuple[str, str]] = []
        """Every request's outputs in order: id and modality."""
        self._readout = ReadOut(self.checkpoint.config["width"])

    def submit(
        self,
        request_id: str,
        ids: Sequence[int],
        *,
        payload: Sequence[int] = (),
        modalities: frozenset[str] | None = None,
        priority: int = 0,
        sample_index: int = 0,
        **sampling: Any,
    ) -> HiddenResult:
        """payload: prompt positions whose hidden states are read too. modalities: all by default."""
        result = HiddenResult()

        def take(output: EngineOutput) -> None:
            if isinstance(output, StageOutput):
                self.log.append((request_id, output.modality))
            result.take(output)

        prompt = plain_prompt(ids, payload_positions=np.array(payload, np.int64))
        request = EngineRequest(
            request_id,
            self.modalities if modalities is None else modalities,
            {WRITER: [Payload(prompt)]},
            sampling={WRITER: SamplingParams(**sampling)},
            priority=priority,
            sample_index=sample_index,
        )
        self.engine.submit(request, take)
        return result

    def submit_all(self, requests: Requests, max_tokens: int) -> list[HiddenResult]:
        return [
            self.submit(str(index), prompt, payload=payload, max_tokens=max_tokens)
            for index, (prompt, payload) in enumerate(requests)
        ]

    def expect_all(self, requests: Requests, results: Sequence[HiddenResult], max_tokens: int) -> None:
        """Of each request that was not given up."""
        for (prompt, payload), result in zip(requests, results, strict=True):
            if result.error is not GIVEN_UP:
                assert result.tokens == self.greedy(prompt, max_tokens)
                assert result.reason == "length"
                self.expect(result, prompt, payload)

    def greedy(self, ids: Sequence[int], max_tokens: int, *, stops: Sequence[int] = ()) -> list[int]:
        """Greedy tokens, everything recomputed for each."""
        with torch.inference_mode():
            return greedy(self.model, ids, max_tokens, stops=stops)

    def rows(self, ids: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float32]:
        """The numbers `[n, N]` that readers must give for the generated `tokens`, the long way."""
        emitted = self.model.emitted_whole([*ids, *tokens])
        return self._readout.read(emitted[len(ids) - 1 : -1].numpy())

    def prompt_rows(self, ids: Sequence[int], payload: Sequence[int]) -> NDArray[np.float32]:
        """The same for prompt positions."""
        return self._readout.read(self.model.emitted_whole(ids)[list(payload)].numpy())

    def expect(self, result: HiddenResult, ids: Sequence[int], payload: Sequence[int] = ()) -> None:
        """Every reader gave one reading for each token, and for each of `payload`: the right ones."""
        assert result.error is None
        for name in (READER, HOST_READER):
            if MODALITIES[name] in self.modalities:
                assert_same(result.read(MODALITIES[name]), self.rows(ids, result.tokens))
                if payload:
                    assert_same(result.read(MODALITIES[name], prompt=True), self.prompt_rows(ids, payload))


def assert_same(read: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    """The whole numbers exactly, the sums within `TOLERANCE`."""
    assert read.shape == wanted.shape
    np.testing.assert_array_equal(read[:, :4], wanted[:, :4])
    np.testing.assert_allclose(read, wanted, rtol=0, atol=TOLERANCE)
