"""Reads published checkpoints: the configuration, and sharded safetensors into modules on their device."""

from omni.checkpoint.checkpoint import Checkpoint
from omni.checkpoint.load import (
    Destination,
    Initializer,
    StackedWeights,
    default_init,
    fill_dummy,
    load_module,
    load_weights,
    stacked_destinations,
)
from omni.checkpoint.resolve import resolve

__all__ = [
    "Checkpoint",
    "Destination",
    "Initializer",
    "StackedWeights",
    "default_init",
    "fill_dummy",
    "load_module",
    "load_weights",
    "resolve",
    "stacked_destinations",
]
