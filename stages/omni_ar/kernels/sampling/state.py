"""State of each row, on the device, and the bits that say which of it sampling reads.

N rows, V vocabulary. Parameters are written by `start_sampling`, history by `observe` too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, get_origin, get_type_hints

import torch
from torch import Tensor

MAX_STOP_IDS = 16
"""Stop ids of a row, the stage's own included. A request with more than these maxima is refused."""

MAX_BIASED_IDS = 1024
"""Ids with a logit bias."""

MAX_BAD_WORDS = 256
"""Bad words, each of one token or of several. A text is often two: with a space before it, and without."""

MAX_BAD_WORD_LENGTH = 16
"""Tokens of a bad word."""

MAX_LOGIT = 1e30
"""Larger logits are clamped to it."""

NO_TOKEN = -1
"""Stands in `recent` where there was no token yet."""

ANYTHING, SOMETHING, NEVER = -2, -3, -4
"""Stand in `bad_words`. ANYTHING matches any token, or none; SOMETHING any token; NEVER never matches."""


class Need:
    """Bits of `SamplingState.needs`, the work that a row's parameters take: one load shows a kernel what it may skip.

    SELECTS: some ids are left out of the draw. COUNTS: generated tokens are counted. RECALLS: the newest tokens are kept.
    ENDLESS: no frame ends the row. CODES: shift of the bits of a frame's codes after the first.
    """

    RANDOM, TOP_K, TOP_P, MIN_P, TOP_N_SIGMA = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4
    SELECTS = TOP_K | TOP_P | MIN_P | TOP_N_SIGMA
    REPETITION, PENALTY, BIAS, FORBIDDEN, BAD_WORDS, MIN_TOKENS = 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
    COUNTS, RECALLS, ENDLESS = 1 << 16, 1 << 17, 1 << 18
    CODES = 20
    CODE_RANDOM, CODE_TOP_K, CODE_TOP_P = RANDOM << CODES, TOP_K << CODES, TOP_P << CODES
    ALL = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """The work of a row, or of a batch: of at least one of its rows. A needless bit costs time, a missing one changes tokens.

    needs: bits of `Need`. processors: names of logits processors.
    """

    needs: int = 0
    processors: frozenset[str] = frozenset()


EVERYTHING = SamplingFlags(Need.ALL)
"""All work but logits processors: of a step that is captured before there are rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of `SamplingState` with one number per row, `[N]`. need: bits of a row whose parameter of this name is not off."""

    dtype: torch.dtype
    need: int = 0


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Fields with a `Column` are numbers; those that are named as a parameter hold it.

    top_p: float64, so that `1 - top_p` rounds as in transformers.
    stop_ids: int64 `[N, MAX_STOP_IDS + 1]`, padded with -1: at least one, so that the id -1 of a row without a choice stops it too.
    forbidden: bool `[N, V]`, ids never to draw. bias_ids, biases: int64, fp32 `[N, MAX_BIASED_IDS]`, padded with id 0, bias 0.
    bad_words: int64 `[N, MAX_BAD_WORDS, 1 + MAX_BAD_WORD_LENGTH]`; the last column is the token that must not come, if the others
        match the newest tokens (see `NEVER`).
    seen: bool `[N, V + 1]`, ids in the prompt and generated; counts: int32 `[N, V + 1]`, how often generated. The last column of
        both is for tokens that did not count.
    recent: int64 `[N, MAX_BAD_WORD_LENGTH]`, newest last, prompt and generated.
    params, uses: of each logits processor, fp32 `[N, width]` and bool `[N]`.
    """

    needs: Annotated[Tensor, Column(torch.int64)]
    sample_index: Annotated[Tensor, Column(torch.int64)]
    seed: Annotated[Tensor, Column(torch.int64)]
    temperature: Annotated[Tensor, Column(torch.float32, Need.RANDOM)]
    top_k: Annotated[Tensor, Column(torch.int64, Need.TOP_K)]
    top_p: Annotated[Tensor, Column(torch.float64, Need.TOP_P)]
    min_p: Annotated[Tensor, Column(torch.float32, Need.MIN_P)]
    top_n_sigma: Annotated[Tensor, Column(torch.float32, Need.TOP_N_SIGMA)]
    code_temperature: Annotated[Tensor, Column(torch.float32, Need.CODE_RANDOM)]
    code_top_k: Annotated[Tensor, Column(torch.int64, Need.CODE_TOP_K)]
    code_top_p: Annotated[Tensor, Column(torch.float64, Need.CODE_TOP_P)]
    repetition_penalty: Annotated[Tensor, Column(torch.float32, Need.REPETITION)]
    frequency_penalty: Annotated[Tensor, Column(torch.float32, Need.PENALTY | Need.COUNTS)]
    presence_penalty: Annotated[Tensor, Column(torch.float32, Need.PENALTY | Need.COUNTS)]
    min_tokens: Annotated[Tensor, Column(torch.int64, Need.MIN_TOKENS)]
    stop_ids: Tensor
    forbidden: Tensor
    bias_ids: Tensor
    biases: Tensor
    bad_words: Tensor
    seen: Tensor
    counts: Tensor
    recent: Tensor
    params: Mapping[str, Tensor]
    uses: Mapping[str, Tensor]

    @classmethod
    def allocate(
        cls,
        zeros: Callable[[tuple[int, ...], torch.dtype], Tensor],
        rows: int,
        vocab: int,
        processor_widths: Mapping[str, int] | None = None,
    ) -> "SamplingState":
        """zeros: allocates zeroed device memory (`Device.zeros`). processor_widths: parameters of each logits processor, by
        name."""
        widths = processor_widths or {}
        return cls(
            **{name: zeros((rows,), column.dtype) for name, column in COLUMNS.items()},
            stop_ids=zeros((rows, MAX_STOP_IDS + 1), torch.int64),
            forbidden=zeros((rows, vocab), torch.bool),
            bias_ids=zeros((rows, MAX_BIASED_IDS), torch.int64),
            biases=zeros((rows, MAX_BIASED_IDS), torch.float32),
            bad_words=zeros((rows, MAX_BAD_WORDS, 1 + MAX_BAD_WORD_LENGTH), torch.int64),
            seen=zeros((rows, vocab + 1), torch.bool),
            counts=zeros((rows, vocab + 1), torch.int32),
            recent=zeros((rows, MAX_BAD_WORD_LENGTH), torch.int64),
            params={name: zeros((rows, width), torch.float32) for name, width in widths.items()},
            uses={name: zeros((rows,), torch.bool) for name in widths},
        )

    def columns(self) -> dict[str, Tensor]:
        """The fields with a `Column`."""
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS: Mapping[str, Column] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(SamplingState, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""Numbers of a row, in the order of their declaration."""
