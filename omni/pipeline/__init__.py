"""Pipelines: frozen graphs of stages, checked whole."""

from omni.pipeline.overrides import apply_overrides, parse_override
from omni.pipeline.pipeline import FRONTEND, Pipeline
from omni.pipeline.stage import Edge, Output, Stage
from omni.pipeline.validate import validate

__all__ = ["FRONTEND", "Edge", "Output", "Pipeline", "Stage", "apply_overrides", "parse_override", "validate"]
