"""What sampling knows of each row, on the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni_ar.processors import NamedProcessor
from omni_ar.sampling.bounds import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS, MAX_BIASED_IDS, MAX_STOP_IDS

NO_TOKEN = -1
"""Stands in `recent` where there was no token yet."""

ANYTHING, SOMETHING, NEVER = -2, -3, -4
"""Stand in `bad_words` for what matches: token or none; any token; nothing, not even none."""


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Per-row settings and history. N rows, V vocabulary. Settings are written by `start_sampling`, history by `observe` too.

    needs: int64, bits of `omni_ar.sampling.needs`. temperature: fp32; 0 is greedy. top_k: int64; 0 is off.
    top_p: float64, so that `1 - top_p` rounds as in transformers; 1 is off.
    min_p, repetition, frequency, presence: fp32; 0, 1, 0, 0 are off. seed, sample_index, min_tokens: int64.
    code_temperature, code_top_k, code_top_p: as those without `code_`, of the codes of a frame after the first.
    stop_ids: int64 `[N, MAX_STOP_IDS + 1]`, padded with -1: at least one, so that the id -1 of a row without a choice stops it too.
    forbidden: bool `[N, V]`, ids never to draw. bias_ids, biases: int64, fp32 `[N, MAX_BIASED_IDS]`, padded with id 0, bias 0.
    bad_words: int64 `[N, MAX_BAD_WORDS, 1 + MAX_BAD_WORD_LENGTH]`; the last column is the token that must not come, the others
        what the newest tokens are then, as `NEVER` says.
    seen: bool `[N, V + 1]`, ids in the prompt and generated; counts: int32 `[N, V + 1]`, how often generated. The last column of
        both is for tokens that did not count.
    recent: int64 `[N, MAX_BAD_WORD_LENGTH]`, newest last, prompt and generated.
    params, uses: of each logits processor, fp32 `[N, width]` and bool `[N]`.
    """

    needs: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    code_temperature: Tensor
    code_top_k: Tensor
    code_top_p: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    seed: Tensor
    sample_index: Tensor
    min_tokens: Tensor
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
        processors: Sequence[NamedProcessor] = (),
    ) -> "SamplingState":
        """zeros: allocates zeroed device memory (`Device.zeros`). A row's settings mean nothing until written."""

        def floats(*size: int) -> Tensor:
            return zeros((rows, *size), torch.float32)

        def doubles() -> Tensor:
            return zeros((rows,), torch.float64)

        def words(*size: int) -> Tensor:
            return zeros((rows, *size), torch.int64)

        return cls(
            needs=words(),
            temperature=floats(),
            top_k=words(),
            top_p=doubles(),
            min_p=floats(),
            code_temperature=floats(),
            code_top_k=words(),
            code_top_p=doubles(),
            repetition=floats(),
            frequency=floats(),
            presence=floats(),
            seed=words(),
            sample_index=words(),
            min_tokens=words(),
            stop_ids=words(MAX_STOP_IDS + 1),
            forbidden=zeros((rows, vocab), torch.bool),
            bias_ids=words(MAX_BIASED_IDS),
            biases=floats(MAX_BIASED_IDS),
            bad_words=words(MAX_BAD_WORDS, 1 + MAX_BAD_WORD_LENGTH),
            seen=zeros((rows, vocab + 1), torch.bool),
            counts=zeros((rows, vocab + 1), torch.int32),
            recent=words(MAX_BAD_WORD_LENGTH),
            params={p.name: floats(p.width) for p in processors},
            uses={p.name: zeros((rows,), torch.bool) for p in processors},
        )
