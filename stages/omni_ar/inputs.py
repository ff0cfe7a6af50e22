"""What an autoregressive stage takes and gives, besides `omni.chunks.TokenChunk`."""

import msgspec
import numpy as np
from numpy.typing import NDArray


class SegmentSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a prompt for tensors that another stage makes. The prompt is not run before they are there.

    name, index: which segment (`"image"`, 1: the second image). positions: int64 `[n]`, its prompt positions, ascending.
    """

    name: str
    index: int
    positions: NDArray[np.int64]


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A request's prompt. One per request.

    columns: int64 `[C, T]`, what the model embeds at each position (token ids, and whatever else its `prompt_columns` name).
    positions: int64 `[P, T]`, rotary positions on each axis. next_position: that of the first generated token.
    segments: places filled by `Segment` inputs.
    payload_positions: int64 `[m]`, the prompt positions whose hidden states a consumer needs, ascending.
    penalized_ids: int64 `[k]`, ids that a repetition penalty counts as seen.
    """

    columns: NDArray[np.int64]
    positions: NDArray[np.int64]
    next_position: int
    segments: tuple[SegmentSlot, ...] = ()
    payload_positions: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    penalized_ids: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        return int(self.columns.shape[1])


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Fills a `SegmentSlot`. The payload's tensors are what the model's `embed_prompt` and `forward` find under these names,
    each with one row for each of the slot's positions in its second-last dimension."""

    name: str
    index: int


class StepInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Conditioning of the next decode steps of a model with `step_columns`: a step does not run before its column is there.

    columns: int64 `[S, n]`, one column for each step. pad: int64 `[S]`, for all steps after the last column; None while more may come.
    """

    columns: NDArray[np.int64]
    pad: NDArray[np.int64] | None = None


class PromptHidden(msgspec.Struct, frozen=True, kw_only=True):
    """Output: hidden states of the prompt's `payload_positions`, in that order; tensor `hidden`, a page slice."""


class CodeFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Output: the codes of one generated token; tensor `codes`, a page slice of one row, one column per code group."""
