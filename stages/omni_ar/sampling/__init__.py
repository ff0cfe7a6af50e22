"""Sampling on the device, one row of logits per request. Nothing here synchronizes."""

from omni_ar.sampling.bits import bit_words, pack_bits, unpack_bits
from omni_ar.sampling.bounds import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS, MAX_BIASED_IDS, MAX_EDITED_IDS, MAX_STOP_IDS
from omni_ar.sampling.edits import PackedEdits, StepEdits, apply_edits, edit_words, merge_edits, pack_edits, view_edits
from omni_ar.sampling.flags import EVERYTHING, SamplingFlags, flags_of
from omni_ar.sampling.logprobs import top_logprobs
from omni_ar.sampling.pack import StartingRow, pack_sampling, start_words
from omni_ar.sampling.rng import gumbel, open_uniform, philox4x32
from omni_ar.sampling.rules import (
    apply_bad_words,
    apply_bias,
    apply_count_penalties,
    apply_min_tokens,
    apply_repetition_penalty,
    apply_suppression,
)
from omni_ar.sampling.sampler import draw, sample
from omni_ar.sampling.start import PackedSampling, SamplingStart, start_sampling, view_starts
from omni_ar.sampling.state import SamplingState
from omni_ar.sampling.warpers import apply_temperature, keep_top, warp

__all__ = [
    "EVERYTHING",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_LENGTH",
    "MAX_BIASED_IDS",
    "MAX_EDITED_IDS",
    "MAX_STOP_IDS",
    "PackedEdits",
    "PackedSampling",
    "SamplingFlags",
    "SamplingStart",
    "SamplingState",
    "StartingRow",
    "StepEdits",
    "apply_bad_words",
    "apply_bias",
    "apply_count_penalties",
    "apply_edits",
    "apply_min_tokens",
    "apply_repetition_penalty",
    "apply_suppression",
    "apply_temperature",
    "bit_words",
    "draw",
    "edit_words",
    "flags_of",
    "gumbel",
    "keep_top",
    "merge_edits",
    "open_uniform",
    "pack_bits",
    "pack_edits",
    "pack_sampling",
    "philox4x32",
    "sample",
    "start_sampling",
    "start_words",
    "top_logprobs",
    "unpack_bits",
    "view_edits",
    "view_starts",
    "warp",
]
