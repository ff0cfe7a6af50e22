"""Sampling on the device, one row of logits per request. Nothing here synchronizes."""

from omni_ar.kernels.sampling.state import EVERYTHING, SamplingFlags, SamplingState
from omni_ar.sampling.edits import PackedEdits, StepEdits, edit_size, merge_edits, pack_edits, view_edits
from omni_ar.sampling.pack import (
    PackedSampling,
    SamplingStart,
    StartingRow,
    flags_of,
    merge_flags,
    pack_sampling,
    start_sampling,
    start_size,
    view_starts,
)
from omni_ar.sampling.resolve import check_defaults, check_sampling, resolve_sampling
from omni_ar.sampling.sampler import draw, sample, top_logprobs

__all__ = [
    "EVERYTHING",
    "PackedEdits",
    "PackedSampling",
    "SamplingFlags",
    "SamplingStart",
    "SamplingState",
    "StartingRow",
    "StepEdits",
    "check_defaults",
    "check_sampling",
    "draw",
    "edit_size",
    "flags_of",
    "merge_edits",
    "merge_flags",
    "pack_edits",
    "pack_sampling",
    "resolve_sampling",
    "sample",
    "start_sampling",
    "start_size",
    "top_logprobs",
    "view_edits",
    "view_starts",
]
