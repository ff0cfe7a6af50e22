"""The engine: one loop that drives the stages on a device."""

from omni.engine.admission import Admission, Held, Rejected
from omni.engine.build import build_engine, check_cuts, check_shapes, load_stages, measure_stages
from omni.engine.choice import PipelineChoice, PipelineFunction
from omni.engine.client import EngineClient
from omni.engine.engine import Engine
from omni.engine.memory import StageMemory
from omni.engine.options import EngineOptions, dtype_for, engine_options
from omni.engine.placement import (
    ConnectorChoice,
    ConnectorSelector,
    Placement,
    check_places_exist,
    check_set_places,
    device_of,
)
from omni.engine.priority_queue import PriorityQueue
from omni.engine.request import (
    EngineOutput,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    Sink,
    StageFinished,
    StageOutput,
)
from omni.engine.resolve import Plan, check_formats, check_pipeline, open_checkpoint, plan_of, resolve_pipeline
from omni.engine.start import StartReport

__all__ = [
    "Admission",
    "ConnectorChoice",
    "ConnectorSelector",
    "Engine",
    "EngineClient",
    "EngineOptions",
    "EngineOutput",
    "EngineRequest",
    "Held",
    "PipelineChoice",
    "PipelineFunction",
    "Placement",
    "Plan",
    "PriorityQueue",
    "Rejected",
    "RequestFailed",
    "RequestFinished",
    "Sink",
    "StageFinished",
    "StageMemory",
    "StageOutput",
    "StartReport",
    "build_engine",
    "check_cuts",
    "check_formats",
    "check_pipeline",
    "check_places_exist",
    "check_set_places",
    "check_shapes",
    "device_of",
    "dtype_for",
    "engine_options",
    "load_stages",
    "measure_stages",
    "open_checkpoint",
    "plan_of",
    "resolve_pipeline",
]
