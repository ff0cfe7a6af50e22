"""The engine: one loop that drives the stages on a device."""

from omni.engine.admission import Admission, Rejected
from omni.engine.build import (
    Plan,
    build_engine,
    check_formats,
    check_pipeline,
    check_shapes,
    load_stages,
    measure_stages,
    resolve_pipeline,
)
from omni.engine.client import EngineClient
from omni.engine.configure import dtype_for, engine_options
from omni.engine.connect import ConnectorChoice, choose_connector
from omni.engine.engine import Engine
from omni.engine.fetch import open_checkpoint
from omni.engine.held import Held
from omni.engine.memory import StageMemory
from omni.engine.options import EngineOptions
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
