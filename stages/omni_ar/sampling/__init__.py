"""Sampling on the device, one row of logits per request. Nothing here synchronizes."""

from omni_ar.sampling.processors import apply_repetition_penalty, apply_suppression, apply_temperature, keep_top, warp
from omni_ar.sampling.rng import gumbel, open_uniform, philox4x32
from omni_ar.sampling.sampler import sample
from omni_ar.sampling.state import SamplingFlags, SamplingState

__all__ = [
    "SamplingFlags",
    "SamplingState",
    "apply_repetition_penalty",
    "apply_suppression",
    "apply_temperature",
    "gumbel",
    "keep_top",
    "open_uniform",
    "philox4x32",
    "sample",
    "warp",
]
