"""Reads published checkpoints: the configuration, and sharded safetensors into modules on their device."""

from omni.checkpoint.checkpoint import Checkpoint, resolve
from omni.checkpoint.cut import Cut
from omni.checkpoint.load import (
    Destination,
    Initializer,
    MissingLayer,
    StackedWeights,
    default_init,
    fill_dummy,
    load_module,
    load_weights,
    stacked_destinations,
)

__all__ = [
    "Checkpoint",
    "Cut",
    "Destination",
    "Initializer",
    "MissingLayer",
    "StackedWeights",
    "default_init",
    "fill_dummy",
    "load_module",
    "load_weights",
    "resolve",
    "stacked_destinations",
]
