"""Packs a plan into host arrays: all host inputs of a step's phases, in one copy."""

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
