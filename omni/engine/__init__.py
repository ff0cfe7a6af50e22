"""The engine: one loop that drives the stages on a device."""

from omni.engine.admission import Admission, Held, Rejected
from omni.engine.build import (
    ConnectorChoice,
    Plan,
    build_engine,
    check_formats,
    check_pipeline,
    check_shapes,
    choose_connector,
    load_stages,
    measure_stages,
    open_checkpoint,
    resolve_pipeline,
)
from omni.engine.engine import Engine, EngineClient
from omni.engine.memory import StageMemory
from omni.engine.options import EngineOptions, dtype_for, engine_options
from omni.engine.ranked import Ranked
from omni.engine.request import (
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
    StageOutput,
)

__all__ = [
    "Admission",
    "ConnectorChoice",
    "Engine",
    "EngineClient",
    "EngineOptions",
    "EngineOutput",
    "EngineRequest",
    "Held",
    "Plan",
    "Ranked",
    "Rejected",
    "RequestFailed",
    "RequestFinished",
    "Sink",
    "StageFinished",
    "StageMemory",
    "StageOutput",
    "build_engine",
    "check_formats",
    "check_pipeline",
    "check_shapes",
    "choose_connector",
    "dtype_for",
    "engine_options",
    "load_stages",
    "measure_stages",
    "open_checkpoint",
    "resolve_pipeline",
]
