"""Compilation of the Triton kernels that a start needs, in processes of its own, while weights load.

A kernel is compiled once for each variant: types and alignment of its arguments, compile-time constants, warps and stages.
Launches of stages on a `RecordingDevice` name the variants before there are weights; `CompileProcesses` compiles them into
Triton's cache on disk, where the stages' first launches find them.
"""

from omni.kernels.counter import CompileCounter
from omni.kernels.device import RecordingDevice
from omni.kernels.processes import Compiled, CompileProcesses, hash_triton, process_count
from omni.kernels.recorder import VariantRecorder
from omni.kernels.shape_rules import ShapeRules
from omni.kernels.start_record import StartRecord
from omni.kernels.variant import Variant

__all__ = [
    "CompileCounter",
    "CompileProcesses",
    "Compiled",
    "RecordingDevice",
    "ShapeRules",
    "StartRecord",
    "Variant",
    "VariantRecorder",
    "hash_triton",
    "process_count",
]
