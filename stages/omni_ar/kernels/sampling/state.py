"""Sampling state of each row, on the device, and the bits for the parts that sampling reads.

N rows, V vocabulary. `start_sampling` writes parameters and history; `observe` updates the history.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, get_origin, get_type_hints

import torch
from torch import Tensor

MAX_STOP_IDS = 16
"""Maximum stop ids of a row, the stage's own included. A request that exceeds one of these maxima is refused."""

MAX_BIASED_IDS = 1024
"""Maximum ids with a logit bias."""

MAX_BAD_WORDS = 256
"""Maximum bad words, of one or several tokens. A text often gives two: with and without a leading space."""

MAX_BAD_WORD_LENGTH = 16
"""Maximum tokens of a bad word."""

MAX_LOGIT = 1e30
"""Larger logits are clamped to this value."""

NO_TOKEN = -1
"""Padding of `recent` before the first token."""

ANYTHING, NEVER = -2, -3
"""Special values in `bad_words`. ANYTHING matches any token and the absence of one; NEVER never matches."""


class Need:
    """Bits of `SamplingState.needs`: the work that a row's parameters require. One load lets a kernel skip the rest.

    SELECTS: some ids are excluded from the draw. COUNTS: generated tokens are counted. RECALLS: the newest tokens are
    kept. ENDLESS: no frame ends the row. CODES: shift of the bits for a frame's codes after the first.
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
    """The sampling work of a row, or of all rows of a batch. A needless bit costs time; a missing bit changes tokens.

    needs: bits of `Need`. processors: names of logits processors.
    """

    needs: int = 0
    processors: frozenset[str] = frozenset()


EVERYTHING = SamplingFlags(Need.ALL)
"""Every kind of work except logits processors, for a step that is captured before any row exists."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field of `SamplingState` with one number per row, `[N]`. need: bits that a row needs unless the parameter of
    this name is off."""

    dtype: torch.dtype
    need: int = 0


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Fields with a `Column` hold one number per row; a field with a parameter's name holds that parameter.

    top_p: float64, so that `1 - top_p` rounds as in transformers.
    stop_ids: int64 `[N, MAX_STOP_IDS + 1]`, padded with at least one -1, so that the id -1 of a row without a possible
        id stops it. forbidden: bool `[N, V]`, ids that are never drawn. bias_ids, biases: int64, fp32 `[N,
        MAX_BIASED_IDS]`, padded with id 0, bias 0. bad_words: int64 `[N, MAX_BAD_WORDS, 1 + MAX_BAD_WORD_LENGTH]`; the
        last column is the token that is masked if the others match the newest tokens (see `NEVER`).
    seen: bool `[N, V + 1]`, ids in the prompt or generated. counts: int32 `[N, V + 1]`, number of times each id was
        generated. The last column of both is for tokens that do not count.
    recent: int64 `[N, MAX_BAD_WORD_LENGTH]`, newest tokens of prompt and output, newest last.
    params, uses: for each logits processor its parameters, fp32 `[N, width]`, and whether a row uses it, bool `[N]`.
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
        """zeros: allocates zeroed device memory (`Device.zeros`). processor_widths: number of parameters of each logits
        processor, by name."""
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
"""Names of the fields with a `Column`, in the order of declaration."""
