"""From what a user names to an engine that runs."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from omni.checkpoint import Checkpoint, resolve
from omni.device import open_device
from omni.engine import Engine, EngineOptions, build_engine, resolve_pipeline
from omni.errors import CheckpointError, OmniError
from omni.frontend.base import Frontend
from omni.pipeline import Pipeline
from omni.plugin import locate
from omni.plugin.manager import Plugins, load_plugins


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run; the engine is not started yet."""

    pipeline: Pipeline
    frontend: Frontend
    engine: Engine


def load(
    model: str | os.PathLike[str],
    *,
    device: str | None,
    dtype: str | torch.dtype | None,
    load_format: str,
    overrides: Mapping[str, object] | None,
    plugins: Plugins | None,
) -> Loaded:
    """Checks settings and pipeline first, then reads the front end's files, then the weights. Raises OmniError."""
    opened = open_device(device)
    plugins = plugins if plugins is not None else load_plugins()
    checkpoint = Checkpoint(resolve(model if isinstance(model, str) else Path(model)))
    plan = resolve_pipeline(checkpoint, plugins, overrides or {})
    if dtype is None:
        dtype = "float32" if opened.torch_device.type == "cpu" else "bfloat16"
    options = EngineOptions(dtype=str(dtype).removeprefix("torch."), load_format=load_format)
    frontend = _build_frontend(plan.pipeline, checkpoint)
    return Loaded(plan.pipeline, frontend, build_engine(plan, checkpoint, plugins, opened, options))


def _build_frontend(pipeline: Pipeline, checkpoint: Checkpoint) -> Frontend:
    build = cast(Callable[[Checkpoint], Frontend], locate(pipeline.frontend, "pipeline.frontend"))
    try:
        return build(checkpoint)
    except OmniError:
        raise
    except Exception as error:
        problem = f"its tokenizer or processor could not be read ({type(error).__name__}: {error})"
        raise CheckpointError(str(checkpoint.path), problem, "download the whole checkpoint again") from error
