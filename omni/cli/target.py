"""A model and its settings, for commands that do not run it."""

from dataclasses import dataclass

import torch

from omni.api.settings import layers_of
from omni.checkpoint import Checkpoint
from omni.cli.options import Choices
from omni.config import Setting, SettingsLayer
from omni.device import name_device
from omni.engine import (
    EngineOptions,
    PipelineChoice,
    Plan,
    check_formats,
    dtype_for,
    engine_options,
    open_checkpoint,
    resolve_pipeline,
)
from omni.frontend.options import frontend_options
from omni.plugin.manager import Plugins, load_plugins


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """Settings of any model. options: the engine's. settings: its, then the front end's. The device need not exist here."""

    layers: list[SettingsLayer]
    options: EngineOptions
    settings: tuple[Setting, ...]
    device: torch.device

    @property
    def dtype(self) -> str:
        return dtype_for(self.options, self.device)


@dataclass(frozen=True, slots=True)
class Target:
    """A model before it is loaded. plan: it is checked, and no weight has been read."""

    checkpoint: Checkpoint
    plugins: Plugins
    plan: Plan
    engine: EngineTarget


def resolve_engine(choices: Choices) -> EngineTarget:
    """Raises ConfigError for an unreadable file, malformed overrides, and settings that are wrong for any model."""
    layers = layers_of(
        config=choices.config,
        overrides=choices.overrides(),
        device=choices.device,
        dtype=choices.dtype,
        load_format=choices.load_format,
        origin="--set",
    )
    _, frontend = frontend_options(layers)
    options, settings = engine_options(layers)
    device = name_device(options.device)
    check_formats(dtype_for(options, device), options.load_format)
    return EngineTarget(layers, options, (*settings, *frontend), device)


def pipeline_choice(choices: Choices) -> PipelineChoice:
    return PipelineChoice(family=choices.family, extensions=choices.extensions)


def resolve_target(model: str, choices: Choices) -> Target:
    """Everything except the weights, which are not downloaded either. Raises OmniError."""
    engine = resolve_engine(choices)
    plugins = load_plugins()
    checkpoint = open_checkpoint(model, plugins, weights=False, family=choices.family)
    plan = resolve_pipeline(checkpoint, plugins, engine.layers, pipeline_choice(choices))
    return Target(checkpoint, plugins, plan, engine)
