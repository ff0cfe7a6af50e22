"""From a checkpoint to an engine: pipeline, overrides, validation, then stages in order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec
import torch

from omni.adapter import AdapterFactory
from omni.checkpoint import Checkpoint
from omni.connector import Connector
from omni.device import Device
from omni.engine.engine import Engine
from omni.engine.orchestrator import Orchestrator
from omni.errors import CheckpointError, ConfigError, OmniError
from omni.pipeline import Pipeline, apply_overrides, validate
from omni.plugin import locate
from omni.plugin.manager import Plugins
from omni.stage import StageContext, StageKind, StageWorker


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the stages are built. dtype: of weights and activations. load_format: `"auto"` or `"dummy"` (random weights)."""

    dtype: str
    load_format: str = "auto"


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked pipeline, with everything it names imported; no weight read yet."""

    pipeline: Pipeline
    kinds: Mapping[str, StageKind]
    adapters: Mapping[str, AdapterFactory]


def resolve_pipeline(checkpoint: Checkpoint, plugins: Plugins, overrides: Mapping[str, object]) -> Plan:
    """The checkpoint's pipeline with overrides applied, checked whole. Raises ConfigError, CheckpointError or PluginError."""
    model_type = str(checkpoint.config.get("model_type", ""))
    family = plugins.family_of(model_type)
    if family is None:
        raise _unserved(model_type, plugins)
    build = cast(Callable[[Checkpoint], Pipeline], locate(family.pipeline, f"families.{family.name}.pipeline"))
    if checkpoint.config.get("quantization_config"):
        problem = "quantized weights are not supported"
        raise CheckpointError("config.json: quantization_config", problem, "use the checkpoint in bfloat16 or float32")
    try:
        pipeline = build(checkpoint)
    except OmniError:
        raise
    except Exception as error:
        problem = f"does not suit family {family.name!r}: {type(error).__name__}: {error}"
        raise CheckpointError("config.json", problem, "use it as published") from error
    return check_pipeline(apply_overrides(pipeline, overrides), plugins)


def _unserved(model_type: str, plugins: Plugins) -> CheckpointError:
    known = sorted(t for f in plugins.families.entries.values() for t in f.model_types)
    remedy = f"known are {', '.join(known) or 'none'}"
    if plugins.families.broken:
        remedy += f" (failed to load: {', '.join(plugins.families.broken)}, see `omni plugins`)"
    problem = f"no plugin serves model type {model_type!r}"
    return CheckpointError("config.json: model_type", problem, f"{remedy}; install a plugin that serves it")


def check_pipeline(pipeline: Pipeline, plugins: Plugins) -> Plan:
    """Checks a pipeline against the graph rules and the registered kinds, and imports its models and adapters."""
    validate(pipeline)
    kinds: dict[str, StageKind] = {}
    for stage in pipeline.stages:
        entry = plugins.kinds[stage.kind]
        kind = cast(Callable[[], StageKind], locate(entry.kind, f"kinds.{entry.name}"))()
        if not isinstance(stage.options, kind.options):
            problem = f"is a {type(stage.options).__name__}"
            remedy = f"kind {stage.kind!r} takes {kind.options.__name__}"
            raise ConfigError(f"pipeline.stages.{stage.name}.options", problem, remedy)
        locate(stage.model, f"pipeline.stages.{stage.name}.model")
        kinds[stage.name] = kind
    adapters = {
        edge.name: cast(AdapterFactory, locate(edge.adapter, f"pipeline.edges.{edge.name}.adapter"))
        for edge in pipeline.edges
    }
    return Plan(pipeline, kinds, adapters)


def build_engine(
    plan: Plan, checkpoint: Checkpoint, plugins: Plugins, device: Device, options: EngineOptions
) -> Engine:
    """Loads every stage onto `device`. Stages share a process and a device, so every edge uses the `local` connector."""
    if options.dtype not in _DTYPES:
        raise ConfigError("dtype", f"{options.dtype!r} is not supported", f"use one of {', '.join(_DTYPES)}")
    if options.load_format not in ("auto", "dummy"):
        raise ConfigError("load_format", f"{options.load_format!r} is not known", 'use "auto" or "dummy"')
    entry = plugins.connectors["local"]
    make = cast(Callable[[], Connector], locate(entry.connector, "connectors.local"))
    connectors = {edge.name: make() for edge in plan.pipeline.edges}
    workers: dict[str, StageWorker] = {}
    with torch.inference_mode():
        for stage in plan.pipeline.order():
            context = StageContext(
                stage, stage.options, checkpoint, device, _DTYPES[options.dtype], options.load_format
            )
            workers[stage.name] = plan.kinds[stage.name].build(context)
    # Weights and zeroed buffers were written on the default stream, which the stages' streams do not wait for.
    device.synchronize()
    transfer = device.stream("transfer")
    orchestrator = Orchestrator(plan.pipeline, workers, plan.adapters, connectors, transfer)
    return Engine(device, orchestrator, workers, connectors)
