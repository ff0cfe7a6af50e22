"""Captured graphs: the sizes that a stage captures batches for, and the graphs that replay them."""

from omni.graphs.captured import Captured, CapturedGraphs
from omni.graphs.sizes import captured_lengths, captured_sizes, check_sizes

__all__ = ["Captured", "CapturedGraphs", "captured_lengths", "captured_sizes", "check_sizes"]
