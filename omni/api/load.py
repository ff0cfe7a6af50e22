"""From a model's name to its engine."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import torch

from omni.api.owner import adapt_to_fork
from omni.checkpoint import Checkpoint
from omni.config import Layer, read_config
from omni.device import name_device, open_device
from omni.engine import (
    Engine,
    EngineOptions,
    build_engine,
    check_shapes,
    dtype_for,
    engine_options,
    open_checkpoint,
    resolve_pipeline,
)
from omni.errors import CheckpointError, ConfigError, OmniError
from omni.frontend.base import Frontend
from omni.frontend.compile import SamplingCompiler
from omni.frontend.encoding import PromptLimit
from omni.frontend.options import FrontendOptions, frontend_options
from omni.pipeline import ENGINE, Pipeline
from omni.plugin import locate
from omni.plugin.manager import Plugins, load_plugins


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run; the engine is not started yet. options: of the front end. limit: of prompts. limits: the engine's, of
    waiting requests."""

    pipeline: Pipeline
    frontend: Frontend
    options: FrontendOptions
    limit: PromptLimit | None
    limits: EngineOptions
    compiler: SamplingCompiler
    engine: Engine


def load(
    model: str | os.PathLike[str],
    layers: Sequence[Layer],
    plugins: Plugins | None,
) -> Loaded:
    """Checks settings and pipeline first, then reads the front end's files, then the weights. Raises OmniError."""
    options, _ = engine_options(layers)
    front, _ = frontend_options(layers)
    adapt_to_fork(name_device(options.device))
    opened = open_device(options.device)
    options = msgspec.structs.replace(options, dtype=dtype_for(options, opened.torch_device))
    plugins = plugins if plugins is not None else load_plugins()
    checkpoint = open_checkpoint(model if isinstance(model, str) else Path(model), plugins)
    plan = resolve_pipeline(checkpoint, plugins, layers)
    frontend = build_frontend(plan.pipeline, checkpoint)
    compiler = SamplingCompiler(plan.pipeline, plan.pipeline.text_stage, frontend.vocabulary())
    if options.load_format == "auto":
        check_shapes(plan, checkpoint, plugins, options)
    engine = build_engine(plan, checkpoint, plugins, opened, options)
    limit = prompt_limit(plan.pipeline, engine)
    try:
        if limit is not None:
            limit.check_template(frontend.shortest_prompt)
    except CheckpointError:
        engine.close()
        raise
    return Loaded(plan.pipeline, frontend, front, limit, options, compiler, engine)


def prompt_limit(pipeline: Pipeline, engine: Engine) -> PromptLimit | None:
    """Of the stage that takes the prompt; None if it has no limit."""
    stage = pipeline.main_stage
    tokens = engine.longest_prompt(stage) if stage is not None else None
    return PromptLimit(stage, tokens) if stage is not None and tokens is not None else None


def layers_of(
    *,
    config: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    load_format: str | None = None,
    timeline: str | os.PathLike[str] | None = None,
    origin: str = "overrides",
) -> list[Layer]:
    """All settings of the user, later ones overriding earlier ones: file, overrides, arguments.

    origin: of the overrides. Raises ConfigError for a file that cannot be read.
    """
    names = {
        "device": device,
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else None,
        "load_format": load_format,
        "timeline": os.fspath(timeline) if timeline is not None else None,
    }
    given = {f"{ENGINE}.{name}": value for name, value in names.items() if value is not None}
    file = [read_config(config)] if config is not None else []
    return [*file, Layer(origin, overrides or {}), Layer("argument", given)]


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
