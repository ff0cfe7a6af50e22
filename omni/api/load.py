"""Loads a model by its name: resolves settings and starts the engine."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from omni.api.owner import adapt_to_fork
from omni.config import SettingsLayer
from omni.device import Device, check_exists, name_device, open_device
from omni.engine import (
    ConnectorSelector,
    EngineClient,
    EngineOptions,
    PipelineChoice,
    Placement,
    build_engine,
    check_cuts,
    check_places_exist,
    check_set_places,
    check_shapes,
    dtype_for,
    engine_options,
    open_checkpoint,
    resolve_pipeline,
)
from omni.errors import CheckpointError
from omni.frontend.base import Frontend
from omni.frontend.build import build_frontend
from omni.frontend.compile import SamplingCompiler
from omni.frontend.limit import PromptLimit
from omni.frontend.options import FrontendOptions, frontend_options
from omni.pipeline import FRONTEND, Pipeline
from omni.plugin.manager import Plugins, load_plugins
from omni.process.child import EngineProcess
from omni.process.group import EngineGroup
from omni.process.select import runs_in_process, warn_of_thread
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model ready to run; the engine is not started yet. options: of the front end. limit: of prompts. limits: the engine's
    limits of waiting requests."""

    pipeline: Pipeline
    frontend: Frontend
    options: FrontendOptions
    limit: PromptLimit | None
    limits: EngineOptions
    compiler: SamplingCompiler
    engine: EngineClient


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadRequest:
    """A model to load, with the settings of its engine and its front end."""

    model: str | os.PathLike[str]
    layers: Sequence[SettingsLayer]
    plugins: Plugins | None
    choice: PipelineChoice
    options: EngineOptions
    front: FrontendOptions
    early: EngineProcess | None
    check: Callable[[Frontend], object]


def load(
    model: str | os.PathLike[str],
    layers: Sequence[SettingsLayer],
    plugins: Plugins | None,
    choice: PipelineChoice,
    early: EngineProcess | None = None,
    check: Callable[[Frontend], object] = lambda frontend: None,
) -> Loaded:
    """Checks settings and pipeline first, then reads the front end's files, then the weights. Raises OmniError.

    early: a process for the engine that runs already. It has ended when this returns an engine in a thread; if this raises, the
    caller ends it. check: called with the front end before the wait for the weights; its errors are errors of loading.
    """
    options, _ = engine_options(layers)
    front, _ = frontend_options(layers)
    named = name_device(options.device)
    check_exists(named)
    check_set_places(layers)
    options = msgspec.structs.replace(options, device=str(named), dtype=dtype_for(options, named))
    asked = _LoadRequest(
        model=model,
        layers=layers,
        plugins=plugins,
        choice=choice,
        options=options,
        front=front,
        early=early,
        check=check,
    )
    if runs_in_process(options, named):
        return _load_in_processes(asked)
    warn_of_thread(options, named)
    adapt_to_fork(named)
    return _load(asked, open_device(options.device))


def _load_in_processes(asked: _LoadRequest) -> Loaded:
    # The first process does its imports while this one reads settings and files.
    group = EngineGroup(asked.early)
    try:
        return _load(asked, group)
    except BaseException:
        group.kill()
        raise


def _load(asked: _LoadRequest, place: EngineGroup | Device) -> Loaded:
    """place: where the engine is built: in processes, or on a device of this one."""
    model, choice, options = asked.model, asked.choice, asked.options
    plugins = asked.plugins if asked.plugins is not None else load_plugins()
    checkpoint = open_checkpoint(model if isinstance(model, str) else Path(model), plugins, family=choice.family)
    plan = resolve_pipeline(checkpoint, plugins, asked.layers, choice)
    placement = Placement.of(plan.pipeline, str(options.device))
    # Those of a family or an extension, too.
    check_places_exist(placement)
    assert options.device is not None, "the caller chose it"
    assert options.dtype is not None, "the caller chose it for the device"
    ConnectorSelector(plugins).check(plan.pipeline, placement)
    check_cuts(plan, checkpoint, options.device, options.dtype)
    if isinstance(place, Device) and runs_in_process(options, place.torch_device, len(placement.places)):
        return _load_in_processes(asked)
    for stage, reason in plan.replicated.items():
        _log.warning("%s: %s", stage, reason)
    if isinstance(place, EngineGroup):
        place.load(str(checkpoint.path), plan.pipeline, plugins, options)
    frontend = build_frontend(plan.pipeline, checkpoint, plan.makers[FRONTEND])
    asked.check(frontend)
    vocabulary = frontend.vocabulary()
    if isinstance(place, EngineGroup):
        place.set_vocabulary(vocabulary)
    compiler = SamplingCompiler(plan.pipeline, plan.pipeline.text_stage, vocabulary)
    engine: EngineClient
    if isinstance(place, EngineGroup):
        with plan.naming_makers():
            place.ready()
        engine = place
    else:
        if asked.early is not None:
            asked.early.discard()
        if options.load_format == "auto":
            check_shapes(plan, checkpoint, plugins, options)
        engine = build_engine(plan, checkpoint, plugins, place, options)
    limit = prompt_limit(plan.pipeline, engine)
    try:
        if limit is not None:
            limit.check_template(frontend.shortest_prompt)
    except CheckpointError:
        engine.close()
        raise
    return Loaded(
        pipeline=plan.pipeline,
        frontend=frontend,
        options=asked.front,
        limit=limit,
        limits=options,
        compiler=compiler,
        engine=engine,
    )


def prompt_limit(pipeline: Pipeline, engine: EngineClient) -> PromptLimit | None:
    """Limit of the stage that takes the prompt; None if it has none."""
    stage = pipeline.main_stage
    tokens = engine.longest_prompt(stage) if stage is not None else None
    return PromptLimit(stage, tokens) if stage is not None and tokens is not None else None
