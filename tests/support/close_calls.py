"""Whether two runs chose the same, and where they did not, whether the logits were nearly equal.

A choice is *close* if another one is made when the logit of the chosen id is lower by `CLOSE`. For a greedy row that is: the two
likeliest ids are as near as that. Devices add numbers up in different orders, so they may differ there, and nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from omni.device import Stream
from omni.device.base import Phase
from omni.device.cpu import CpuDevice
from omni_ar.kernels.step.state import RowState
from omni_ar.model import CodecModel, Codes, DrawCode
from omni_ar.run.late_phases import predict_codes
from omni_ar.run.phases import sample_rows

CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Choice:
    """The id of one code group (0 where there are no others) of a request's token at `position`, the first being 0."""

    stage: str
    position: int
    group: int = 0


class WatchedCpu(CpuDevice):
    """The CPU, which remembers the close choices of the one request that runs.

    It finds them by choosing again. choices: how many there were; close: those that were close.
    """

    def __init__(self) -> None:
        super().__init__()
        self.choices = 0
        self.close: set[Choice] = set()

    def forget(self) -> None:
        """Before the next request."""
        self.choices = 0
        self.close.clear()

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if phase is predict_codes:
            model, state, hidden_RD, rows_R, *others = buffers
            assert isinstance(model, CodecModel)
            position_R = _outputs(state, rows_R) - 1  # the frame's first code is counted already
            buffers = (_WatchedCodec(model, self, stream.name, position_R), state, hidden_RD, rows_R, *others)
        super().launch(stream, phase, *buffers)
        if phase is sample_rows:
            self._sample_again(stream.name, buffers)

    def look(self, stage: str, position_R: Tensor, group: int, ids_R: Tensor, again_R: Tensor) -> None:
        """Records choices, and those of the second run."""
        self.choices += ids_R.shape[0]
        for position, first, second in zip(position_R.tolist(), ids_R.tolist(), again_R.tolist(), strict=True):
            if first != second:
                self.close.add(Choice(stage, position, group))

    def _sample_again(self, stage: str, buffers: Sequence[object]) -> None:
        state, logits_RV, rows_R, *others, ids_R = buffers
        assert isinstance(logits_RV, Tensor)
        assert isinstance(ids_R, Tensor)
        again_R = torch.empty_like(ids_R)
        again: Callable[..., None] = sample_rows
        again(state, lowered(logits_RV, ids_R), rows_R, *others, again_R)
        self.look(stage, _outputs(state, rows_R), 0, ids_R, again_R)


class _WatchedCodec:
    """Chooses every code twice."""

    def __init__(self, model: CodecModel, device: WatchedCpu, stage: str, position_R: Tensor) -> None:
        self._model = model
        self._device = device
        self._stage = stage
        self._position_R = position_R

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        def draw_twice(logits_RV: Tensor, group: int) -> Tensor:
            ids_R = draw(logits_RV, group)
            again_R = draw(lowered(logits_RV, ids_R), group)
            self._device.look(self._stage, self._position_R, group, ids_R, again_R)
            return ids_R

        return self._model.predict_codes(hidden_RD, code0_R, draw_twice)


def lowered(logits_RV: Tensor, ids_R: Tensor) -> Tensor:
    """Logits in which each row's chosen id has less."""
    less_RV = logits_RV.clone()
    return less_RV.scatter_add_(1, ids_R.clamp(min=0)[:, None], less_RV.new_full((ids_R.shape[0], 1), -CLOSE))


def _outputs(state: object, rows_R: object) -> Tensor:
    assert isinstance(state, RowState)
    assert isinstance(rows_R, Tensor)
    return state.columns.outputs.index_select(0, rows_R)


@dataclass(slots=True)
class Comparison:
    """Counts of one test's comparisons. choices: how many ids. excused: first differences of requests, where the choice was
    close."""

    choices: int = 0
    excused: list[Choice] = field(default_factory=list)

    def tokens(self, stage: str, given: Sequence[int], expected: Sequence[int], close: set[Choice]) -> bool:
        """As `frames`, of tokens without other groups."""
        return self.frames(stage, [(token,) for token in given], [(token,) for token in expected], close)

    def frames(
        self,
        stage: str,
        given: Sequence[Sequence[int]],
        expected: Sequence[Sequence[int]],
        close: set[Choice],
    ) -> bool:
        """Whether a stage's choices are the `expected` ones. close: those of the expected run that were close.

        Raises AssertionError if the first that differs was not close. If it was, the answer is no, and nothing that follows from it
        can be compared.
        """
        first = _first_difference(stage, given, expected)
        shared = len(expected) if first is None else first.position
        self.choices += sum(len(frame) for frame in expected[:shared])
        if first is None:
            return True
        assert first in close, f"{first} differs and was not close:\n{given}\n{expected}"
        self.excused.append(first)
        return False

    def assert_rare(self) -> None:
        """Something was compared, and of a thousand choices at most one was excused, or one in all."""
        assert self.choices
        assert len(self.excused) <= 1 + self.choices // 1000, f"of {self.choices} choices: {self.excused}"


def _first_difference(stage: str, given: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> Choice | None:
    for position, (mine, wanted) in enumerate(zip(given, expected, strict=False)):
        assert len(mine) == len(wanted)
        for group, (code, other) in enumerate(zip(mine, wanted, strict=True)):
            if code != other:
                return Choice(stage, position, group)
    if len(given) == len(expected):
        return None
    return Choice(stage, min(len(given), len(expected)))  # one of them ended there, the other did not
