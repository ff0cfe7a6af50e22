"""From a plan to packed host arrays: everything that a step's phases need from the host, in one copy."""

from omni_ar.run.pack.chunks import PackedChunks, PackedEmbedding, placeholders_in, scored_positions
from omni_ar.run.pack.starts import PackedStarts
from omni_ar.run.pack.step import LeadingInputs, PackedStep, captured_spans, pack_step

__all__ = [
    "LeadingInputs",
    "PackedChunks",
    "PackedEmbedding",
    "PackedStarts",
    "PackedStep",
    "captured_spans",
    "pack_step",
    "placeholders_in",
    "scored_positions",
]
