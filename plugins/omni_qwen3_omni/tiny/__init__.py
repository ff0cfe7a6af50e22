"""Tiny random checkpoints in the published format."""

from omni_qwen3_omni.tiny.shape import TinyShape
from omni_qwen3_omni.tiny.write import write_tiny

__all__ = ["TinyShape", "write_tiny"]
