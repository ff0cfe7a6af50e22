"""A model and its settings, for commands that do not run it."""

from dataclasses import dataclass

import torch

from omni.api.load import layers_of
from omni.checkpoint import Checkpoint
from omni.cli.options import Choices
from omni.config import Layer, Setting
from omni.device import name_device
from omni.engine import EngineOptions, Plan, check_formats, dtype_for, engine_options, open_checkpoint, resolve_pipeline
from omni.frontend.options import frontend_options
from omni.plugin.manager import Plugins, load_plugins


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """The engine's options and device. The device need not exist here."""

    options: EngineOptions
    settings: tuple[Setting, ...]
    device: torch.device

    @property
    def dtype(self) -> str:
        return dtype_for(self.options, self.device)


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved model. plan: checked; no weight read. frontend: its settings."""

    checkpoint: Checkpoint
    plugins: Plugins
    plan: Plan
    engine: EngineTarget
    frontend: tuple[Setting, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The engine's, then the front end's, then those of the stages."""
        return (*self.engine.settings, *self.frontend, *self.plan.settings)


def layers_from(choices: Choices) -> list[Layer]:
    """Raises ConfigError for an unreadable file and for malformed overrides."""
    return layers_of(
        config=choices.config,
        overrides=choices.overrides(),
        device=choices.device,
        dtype=choices.dtype,
        load_format=choices.load_format,
        origin="--set",
    )


def resolve_engine(layers: list[Layer]) -> EngineTarget:
    """Raises ConfigError for settings that are wrong for any model."""
    options, settings = engine_options(layers)
    device = name_device(options.device)
    check_formats(dtype_for(options, device), options.load_format)
    return EngineTarget(options, settings, device)


def resolve_target(model: str, choices: Choices) -> Target:
    """Everything except the weights, which are not downloaded either. Raises OmniError."""
    layers = layers_from(choices)
    engine = resolve_engine(layers)
    _, frontend = frontend_options(layers)
    plugins = load_plugins()
    checkpoint = open_checkpoint(model, plugins, weights=False)
    return Target(checkpoint, plugins, resolve_pipeline(checkpoint, plugins, layers), engine, frontend)
