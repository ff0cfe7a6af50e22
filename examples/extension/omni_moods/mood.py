"""Stage kind `"mood"`: classifies hidden states. Shape legend: n positions, D width, M moods."""

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.payload import Payload, RequestHiddenStates
from omni.stage import PlainStage, StageContext
from omni_moods.host import HostWorker
from omni_moods.options import MoodOptions


class Mood(msgspec.Struct, frozen=True, kw_only=True):
    """label: the class. scores: of all, in order. positions: read."""

    label: str
    scores: tuple[float, ...]
    positions: int


def floats(rows_nD: Tensor) -> NDArray[np.float32]:
    """The numbers of a tensor in host memory.

    A worker calls no operation of torch outside of phases, and numpy has no bfloat16.
    """
    if rows_nD.dtype == torch.bfloat16:
        return (rows_nD.view(torch.int16).numpy().astype(np.int32) << 16).view(np.float32)
    return rows_nD.numpy().astype(np.float32)


def classify(hidden_nD: NDArray[np.float32], moods: int) -> NDArray[np.float64]:
    """Scores `[M]`: a fixed projection of the mean over positions, in place of a trained one."""
    weights_DM = np.sin(np.linspace(-1, 1, hidden_nD.shape[1] * moods).reshape(-1, moods))
    scores_M: NDArray[np.float64] = hidden_nD.astype(np.float64).mean(0) @ weights_DM
    return scores_M


class MoodWorker(HostWorker):
    takes = RequestHiddenStates

    def __init__(self, name: str, options: MoodOptions) -> None:
        super().__init__(name)
        self._moods = options.moods

    def answer(self, payload: Payload) -> Mood:
        hidden_nD = payload.tensors["hidden"]
        assert isinstance(hidden_nD, Tensor), "the edge has memory='host'"
        scores_M = classify(floats(hidden_nD), len(self._moods))
        label = self._moods[int(scores_M.argmax())]
        return Mood(label=label, scores=tuple(scores_M.tolist()), positions=len(hidden_nD))


class MoodKind:
    name = "mood"
    options = MoodOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, MoodOptions)
        return PlainStage(MoodWorker(context.stage.name, context.options))
