"""Tiny random checkpoints in the published format: transformers' own classes with few numbers in them."""

from omni_qwen2_5_omni.tiny.shape import TinyShape
from omni_qwen2_5_omni.tiny.write import write_tiny

__all__ = ["TinyShape", "write_tiny"]
