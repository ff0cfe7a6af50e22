"""Inputs and outputs of an autoregressive stage, besides `omni.payload.GeneratedTokens`."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from omni.errors import InputError
from omni.frontend.media import EncodedChat, Media


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt positions that another stage's multimodal embedding fills. The prompt does not run before it has arrived.

    name, index: identify the embedding (`"image"`, 1: the second image). positions: int64 `[n]`, ascending. key: content key; equal
    keys mean equal tensors. Without a key, no prefix that reaches into the positions is cached. field: its name in errors.
    """

    name: str
    index: int
    positions: NDArray[np.int64]
    key: str | None = None
    field: str = ""

    @property
    def called(self) -> str:
        """Its name in errors: the field, or name and index for an embedding that is not from a message."""
        return self.field or f"embedding.{self.name}[{self.index}]"


def placeholders_of(
    media: Mapping[str, Sequence[Media]], positions: Mapping[str, Sequence[NDArray[np.int64]]]
) -> tuple[Placeholder, ...]:
    """Placeholders of a request's media. media: by name of the embeddings. positions: of each, as
    `omni.frontend.media.expand` returns them."""
    return tuple(
        Placeholder(name=name, index=index, positions=indexes, key=each.key, field=each.field)
        for name, pieces in media.items()
        for index, (each, indexes) in enumerate(zip(pieces, positions[name], strict=True))
    )


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A request's prompt; a request has one. columns: int64 `[C, T]`, the ids embedded at each position, in the order of the
    model's `prompt_columns`. positions: int64 `[P, T]`, rotary positions on each axis. next_position: of the first generated token.
    placeholders: each is filled by a `MultimodalEmbedding` input. payload_positions: int64 `[m]`, ascending, the positions whose
    hidden states a consumer needs. penalized_ids: int64 `[k]`, ids that a repetition penalty counts as seen."""

    columns: NDArray[np.int64]
    positions: NDArray[np.int64]
    next_position: int
    placeholders: tuple[Placeholder, ...] = ()
    payload_positions: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    penalized_ids: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, ids: NDArray[np.int64], *, penalized: bool = True) -> "Prompt":
        """A prompt of token ids `[T]`: one column, and positions counted from 0 on one axis.

        penalized: whether a repetition penalty counts them as seen, as in transformers. False for ids of another
        vocabulary than the stage's tokens, as a text before codec frames.
        """
        seen = np.unique(ids) if penalized else np.empty(0, np.int64)
        positions = np.arange(len(ids))[None]
        return cls(columns=ids[None], positions=positions, next_position=len(ids), penalized_ids=seen)

    @property
    def length(self) -> int:
        return int(self.columns.shape[1])

    def check(self, columns: int, axes: int, vocab_size: int) -> None:
        """Raises InputError for a prompt that does not fit a model with `columns` prompt columns and `axes` rotary axes."""
        _check_shape("prompt.columns", self.columns, (columns, None))
        _check_shape("prompt.positions", self.positions, (axes, self.length))
        for placeholder in self.placeholders:
            field = f"prompt.placeholders.{placeholder.name}[{placeholder.index}].positions"
            _check_range(field, placeholder.positions, self.length)
        _check_range("prompt.payload_positions", self.payload_positions, self.length)
        _check_range("prompt.penalized_ids", self.penalized_ids, vocab_size)


def prompt_of(chat: EncodedChat, payload_positions: NDArray[np.int64] | None = None) -> Prompt:
    """The prompt of a chat with media for a text model. Placeholders have the names of the media's kinds."""
    return Prompt(
        columns=chat.ids_T[None],
        positions=chat.positions_3T,
        next_position=chat.next_position,
        placeholders=placeholders_of(chat.media, chat.positions),
        payload_positions=np.empty(0, np.int64) if payload_positions is None else payload_positions,
        penalized_ids=np.unique(chat.ids_T),
    )


class MultimodalEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Fills the `Placeholder` of the same name and index. The model's `embed_prompt` and `forward` read the payload's
    tensors by name; the second-last dimension of each has one entry per position of the placeholder."""

    name: str
    index: int


class StepInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Conditioning of the next decode steps of a model with `step_columns` or `step_width`. A step waits for its conditioning.

    columns: int64 `[S, n]`, one column for each step. pad: int64 `[S]`, for all steps after these; None while more may come. For a
    model with a `step_width` E the payload may have a tensor `vectors`: `[n, E]` or a page slice of that shape, of any
    floating dtype; it is converted to the stage's dtype. A step without a vector gets zeros.
    """

    columns: NDArray[np.int64]
    pad: NDArray[np.int64] | None = None

    def check(self, columns: int) -> None:
        """Raises InputError for inputs that do not fit a model with `columns` step columns."""
        _check_shape("step_inputs.columns", self.columns, (columns, None))
        if self.pad is not None:
            _check_shape("step_inputs.pad", self.pad, (columns,))


class PromptHidden(msgspec.Struct, frozen=True, kw_only=True):
    """Output: hidden states of the prompt's `payload_positions`, in the order of these. Tensor `hidden`: a page slice."""


class TokenHidden(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a model that emits its tokens' hidden states. Tensor `hidden`: a page slice `[1, D]`. index: number of the
    generated token, from 0. The hidden state belongs to the position that the token was sampled from: the prompt's last position
    for token 0, the position of token i - 1 for token i. It is emitted with token i - 1, also where token i is withheld because a
    stop string ends the text, or does not exist because a grammar ends it."""

    index: int


class TokenCodes(msgspec.Struct, frozen=True, kw_only=True):
    """Output: the codes of n consecutive generated tokens. Tensor `codes`: a page slice `[n, G]`, one code per group."""


def _check_shape(field: str, array: NDArray[np.int64], wanted: tuple[int | None, ...]) -> None:
    fits = len(array.shape) == len(wanted) and all(w in (None, n) for n, w in zip(array.shape, wanted, strict=True))
    if not fits or array.dtype != np.int64:
        shape = ", ".join("any" if size is None else str(size) for size in wanted)
        raise InputError(field, f"is {array.dtype} {list(array.shape)}", f"give int64 [{shape}]")


def _check_range(field: str, values: NDArray[np.int64], end: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= end):
        raise InputError(field, f"reach from {values.min()} to {values.max()}", f"use 0 to {end - 1}")
