"""Pipelines: immutable graphs of stages, checked as a whole."""

from omni.pipeline.pipeline import ENGINE, FRONTEND, Pipeline
from omni.pipeline.stage import EDGES, Edge, EdgeSettings, PipelineOutput, Stage, hidden_states_of
from omni.pipeline.validate import validate

__all__ = [
    "EDGES",
    "ENGINE",
    "FRONTEND",
    "Edge",
    "EdgeSettings",
    "Pipeline",
    "PipelineOutput",
    "Stage",
    "hidden_states_of",
    "validate",
]
