"""The bookkeeping of a decode step, by a kernel where there is one."""

from omni_ar.kernels.step.dispatch import (
    accept_tokens,
    end_frames,
    frame_inputs,
    place_frames,
    post_update,
    prepare_decodes,
)

__all__ = ["accept_tokens", "end_frames", "frame_inputs", "place_frames", "post_update", "prepare_decodes"]
