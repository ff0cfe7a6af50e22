"""The engine: one loop that drives the stages on a device."""

from omni.engine.build import EngineOptions, Plan, build_engine, check_pipeline, resolve_pipeline
from omni.engine.engine import Engine
from omni.engine.request import (
    EngineOutput,
    EngineRequest,
    OutputChunk,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
)

__all__ = [
    "Engine",
    "EngineOptions",
    "EngineOutput",
    "EngineRequest",
    "OutputChunk",
    "Plan",
    "RequestFailed",
    "RequestFinished",
    "Sink",
    "StageFinished",
    "build_engine",
    "check_pipeline",
    "resolve_pipeline",
]
