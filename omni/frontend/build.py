"""Builds a family's front end."""

from collections.abc import Callable
from typing import cast

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError, ConfigError, OmniError
from omni.frontend.base import Frontend
from omni.pipeline import Pipeline
from omni.plugin import locate


def build_frontend(pipeline: Pipeline, checkpoint: Checkpoint) -> Frontend:
    """The family's front end for the checkpoint. Raises CheckpointError if its files cannot be read, ConfigError if it is none."""
    build = cast(Callable[[Checkpoint], object], locate(pipeline.frontend, "pipeline.frontend"))
    try:
        frontend = build(checkpoint)
    except OmniError:
        raise
    except Exception as error:
        problem = f"its tokenizer or processor could not be read ({type(error).__name__}: {error})"
        raise CheckpointError(str(checkpoint.path), problem, "download the whole checkpoint again") from error
    if not isinstance(frontend, Frontend):
        remedy = "derive it from omni.frontend.base.Frontend"
        raise ConfigError("pipeline.frontend", f"gave a {type(frontend).__name__}", remedy)
    if pipeline.text_stage is not None and frontend.text_decoder() is None:
        problem = f"has no text decoder, but stage {pipeline.text_stage!r} writes text"
        raise ConfigError("pipeline.frontend", problem, "make one in Frontend.text_decoder")
    return frontend
