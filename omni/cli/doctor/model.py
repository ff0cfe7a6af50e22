"""The requirements of a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omni.api.load import build_frontend
from omni.checkpoint import Checkpoint, resolve
from omni.cli.doctor.check import Check, attempt, failed, ok, problem, warning
from omni.cli.doctor.devices import gib, host_memory
from omni.cli.doctor.weights import check_weights
from omni.cli.memory import MemoryReport, count_memory
from omni.cli.options import Choices
from omni.cli.target import EngineTarget, Target, layers_from, resolve_engine
from omni.config import Layer, Setting
from omni.device import Device, open_device
from omni.engine import Plan, resolve_pipeline
from omni.errors import CheckpointError
from omni.frontend.base import Frontend
from omni.frontend.options import frontend_options
from omni.plugin.manager import Plugins

_GROUP = "model"


@dataclass(frozen=True, slots=True)
class _Settings:
    layers: list[Layer]
    engine: EngineTarget
    frontend: tuple[Setting, ...]


def check_model(model: str, choices: Choices, plugins: Plugins) -> Iterator[Check]:
    """From the folder to the device's memory. A failed check skips those that depend on it."""
    settings = attempt(_GROUP, "settings", lambda: _read_settings(choices), _describe_settings)
    yield settings.check
    folder = _folder(model)
    if isinstance(folder, Check):
        yield folder
        return
    yield ok(_GROUP, "folder", str(folder))
    checkpoint = attempt(_GROUP, "config.json", lambda: Checkpoint(folder), _describe_checkpoint)
    yield checkpoint.check
    if settings.value is not None and checkpoint.value is not None:
        yield from _pipeline_needs(checkpoint.value, plugins, settings.value)


def _pipeline_needs(checkpoint: Checkpoint, plugins: Plugins, settings: _Settings) -> Iterator[Check]:
    layers = settings.layers
    plan = attempt(_GROUP, "pipeline", lambda: resolve_pipeline(checkpoint, plugins, layers), _describe_plan)
    yield plan.check
    if plan.value is None:
        return
    target = Target(checkpoint, plugins, plan.value, settings.engine, settings.frontend)
    yield from check_weights(target)
    yield attempt(
        _GROUP, "processor", lambda: build_frontend(target.plan.pipeline, checkpoint), _describe_front_end
    ).check
    yield from _room(target)


def _describe_settings(settings: _Settings) -> str:
    return f"for {settings.engine.device} in {settings.engine.dtype}"


def _describe_checkpoint(checkpoint: Checkpoint) -> str:
    return f"model type {checkpoint.config.get('model_type')!r}"


def _describe_plan(plan: Plan) -> str:
    return f"family {plan.pipeline.family}: {', '.join(stage.name for stage in plan.pipeline.order())}"


def _read_settings(choices: Choices) -> _Settings:
    layers = layers_from(choices)
    _, frontend = frontend_options(layers)
    return _Settings(layers, resolve_engine(layers), frontend)


def _folder(model: str) -> Path | Check:
    try:
        return resolve(model, download=False)
    except CheckpointError as error:
        local = Path(model).expanduser()
        if local.exists() or model.count("/") != 1 or model.startswith((".", "/", "~")):
            return failed(_GROUP, "folder", error)
        return problem(_GROUP, "folder", f"{model} is neither a folder nor downloaded", f"`hf download {model}`")


def _describe_front_end(frontend: Frontend) -> str:
    voices = f"; voices {', '.join(frontend.voices)}" if frontend.voices else ""
    return f"tokenizer and processor can be read{voices}"


def _room(target: Target) -> Iterator[Check]:
    device = attempt(_GROUP, "device", lambda: open_device(str(target.engine.device)), _describe_device)
    yield device.check
    if device.value is None:
        return
    report = count_memory(target)
    if report.problem is not None:
        yield problem(_GROUP, "memory", report.problem, "`omni explain` has the numbers")
        return
    free = report.budget if report.budget is not None else host_memory()[1]
    yield _fits(report, free)


def _describe_device(device: Device) -> str:
    return str(device.torch_device)


def _fits(report: MemoryReport, free: int) -> Check:
    least = sum(share.least for share in report.stages.values())
    most = sum(share.most for share in report.stages.values())
    detail = f"needs {gib(least)} to {gib(most)}, without the memory of steps; {gib(free)} are free"
    if least > free:
        remedy = "lower max_model_len, max_num_seqs and cache_bytes of the stages, or take a device with more memory"
        return problem(_GROUP, "memory", detail, remedy)
    if most > free and report.budget is None:
        # Unbounded stages take their maximum.
        return warning(_GROUP, "memory", detail, "set engine.memory_bytes, and the stages divide it")
    return ok(_GROUP, "memory", detail)
