"""Sampling on the device, one row of logits per request. Nothing here synchronizes."""

from omni_ar.kernels.sampling.state import (
    EVERYTHING,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIASED_IDS,
    MAX_STOP_IDS,
    Need,
    SamplingFlags,
    SamplingState,
)
from omni_ar.sampling.bitmask import bitmask_size, pack_bitmask, unpack_bitmask
from omni_ar.sampling.edits import (
    MAX_EDITED_IDS,
    PackedEdits,
    StepEdits,
    edit_size,
    merge_edits,
    pack_edits,
    view_edits,
)
from omni_ar.sampling.needs import flags_of, merge_flags, needs_of
from omni_ar.sampling.pack import StartingRow, pack_sampling, start_size
from omni_ar.sampling.penalties import (
    apply_count_penalties,
    apply_penalties,
    apply_repetition_penalty,
    apply_suppression,
)
from omni_ar.sampling.resolve import check_defaults, check_sampling, resolve_sampling
from omni_ar.sampling.rng import gumbel, open_uniform, philox4x32
from omni_ar.sampling.sampler import draw, sample, top_logprobs
from omni_ar.sampling.start import PackedSampling, SamplingStart, start_sampling, view_starts
from omni_ar.sampling.warpers import apply_temperature, keep_top, warp, warp_tokens

__all__ = [
    "EVERYTHING",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_LENGTH",
    "MAX_BIASED_IDS",
    "MAX_EDITED_IDS",
    "MAX_STOP_IDS",
    "Need",
    "PackedEdits",
    "PackedSampling",
    "SamplingFlags",
    "SamplingStart",
    "SamplingState",
    "StartingRow",
    "StepEdits",
    "apply_count_penalties",
    "apply_penalties",
    "apply_repetition_penalty",
    "apply_suppression",
    "apply_temperature",
    "bitmask_size",
    "check_defaults",
    "check_sampling",
    "draw",
    "edit_size",
    "flags_of",
    "gumbel",
    "keep_top",
    "merge_edits",
    "merge_flags",
    "needs_of",
    "open_uniform",
    "pack_bitmask",
    "pack_edits",
    "pack_sampling",
    "philox4x32",
    "resolve_sampling",
    "sample",
    "start_sampling",
    "start_size",
    "top_logprobs",
    "unpack_bitmask",
    "view_edits",
    "view_starts",
    "warp",
    "warp_tokens",
]
