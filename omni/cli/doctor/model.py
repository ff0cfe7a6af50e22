"""The requirements of a model."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from omni.checkpoint import Checkpoint, resolve
from omni.checkpoint.shards import INDEX, SINGLE, Shard, read_index
from omni.cli.doctor.check import Finding, attempt, failed, ok, problem, warning
from omni.cli.doctor.devices import gib, host_memory
from omni.cli.memory import MemoryReport, count_memory
from omni.cli.options import Choices
from omni.cli.target import EngineTarget, Target, pipeline_choice, resolve_engine
from omni.device import open_device
from omni.device.meta import MetaDevice
from omni.engine import Placement, load_stages, resolve_pipeline
from omni.engine.cut import CutStages
from omni.errors import CheckpointError
from omni.frontend.base import Frontend
from omni.frontend.build import build_frontend
from omni.pipeline import FRONTEND
from omni.plugin.manager import Plugins

_GROUP = "model"


def check_model(model: str, choices: Choices, plugins: Plugins) -> Iterator[Finding]:
    """Checks a model, from its folder to the device's memory. A failed check skips those that depend on it."""
    settings = attempt(
        _GROUP, "settings", lambda: resolve_engine(choices), lambda read: f"for {read.device} in {read.dtype}"
    )
    yield settings.check
    folder = _folder(model)
    if isinstance(folder, Finding):
        yield folder
        return
    yield ok(_GROUP, "folder", str(folder))
    checkpoint = attempt(
        _GROUP, "config.json", lambda: Checkpoint(folder), lambda read: f"model type {read.config.get('model_type')!r}"
    )
    yield checkpoint.check
    if settings.value is not None and checkpoint.value is not None:
        yield from _pipeline_needs(checkpoint.value, plugins, settings.value, choices)


def _pipeline_needs(
    checkpoint: Checkpoint, plugins: Plugins, engine: EngineTarget, choices: Choices
) -> Iterator[Finding]:
    plan = attempt(
        _GROUP,
        "pipeline",
        lambda: resolve_pipeline(checkpoint, plugins, engine.layers, pipeline_choice(choices)),
        lambda plan: f"family {plan.pipeline.family}: {', '.join(stage.name for stage in plan.pipeline.order())}",
    )
    yield plan.check
    if plan.value is None:
        return
    target, pipeline = Target(checkpoint, plugins, plan.value, engine), plan.value.pipeline
    yield from _check_weights(target)
    maker = plan.value.makers[FRONTEND]
    yield attempt(_GROUP, "processor", lambda: build_frontend(pipeline, checkpoint, maker), _describe_front_end).check
    yield from _memory(target)


def _folder(model: str) -> Path | Finding:
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


def _memory(target: Target) -> Iterator[Finding]:
    device = attempt(
        _GROUP, "device", lambda: open_device(str(target.engine.device)), lambda opened: str(opened.torch_device)
    )
    yield device.check
    if device.value is None:
        return
    counted = attempt(
        _GROUP,
        "memory",
        lambda: count_memory(target, Placement.of(target.plan.pipeline, str(target.engine.device))),
        lambda reports: ", ".join(reports),
    )
    if counted.value is None:
        yield counted.check
        return
    reports = counted.value
    for place, report in reports.items():
        name = "memory" if len(reports) == 1 else f"memory on {place}"
        if report.problem is not None:
            yield problem(_GROUP, name, report.problem, "`omni explain` has the numbers")
        else:
            yield _fits(name, report, report.budget if report.budget is not None else host_memory()[1] // len(reports))


def _fits(name: str, report: MemoryReport, free: int) -> Finding:
    least = sum(share.least for share in report.stages.values())
    most = sum(share.most for share in report.stages.values())
    detail = f"needs {gib(least)} to {gib(most)}, without the memory of steps; {gib(free)} are free"
    if least > free:
        remedy = "lower max_model_len, max_num_seqs and cache_bytes of the stages, or take a device with more memory"
        return problem(_GROUP, name, detail, remedy)
    if most > free and report.budget is None:
        # Unbounded stages take their maximum.
        return warning(_GROUP, name, detail, "set engine.memory_bytes, and the stages divide it")
    return ok(_GROUP, name, detail)


def _check_weights(target: Target) -> Iterator[Finding]:
    """Each missing or broken file, then names and shapes. Reads no weight."""
    if target.engine.options.load_format == "dummy":
        yield ok(_GROUP, "weights", "random (load_format is dummy)")
        return
    broken = list(_files(target.checkpoint.path))
    yield from broken
    if any(check.status == "problem" for check in broken):
        return
    shapes = attempt(
        _GROUP,
        "shapes",
        # Copies to the meta device check everything and transfer nothing.
        lambda: load_stages(
            target.plan,
            target.checkpoint,
            MetaDevice(),
            dtype=target.engine.dtype,
            load_format="auto",
            ranks=CutStages.alone(Placement.of(target.plan.pipeline, str(target.engine.device))).ranks,
        ),
        lambda loaded: f"all weights of {len(loaded)} stages are there, in the shapes that config.json gives",
    )
    yield shapes.check


def _files(folder: Path) -> Iterator[Finding]:
    if (folder / INDEX).exists():
        try:
            index = read_index(folder)
        except CheckpointError as error:
            yield failed(_GROUP, "weights", error)
            return
    elif (folder / SINGLE).exists():
        index = {}
    else:
        detail = f"neither {INDEX} nor {SINGLE} is in {folder}"
        yield problem(_GROUP, "weights", detail, "download them, or use --load-format dummy for random weights")
        return
    names: dict[str, set[str]] = defaultdict(set)
    for weight, file in index.items():
        names[file].add(weight)
    problems = [check for file, held in (names or {SINGLE: set()}).items() if (check := _file(folder / file, held))]
    yield from problems
    if not problems:
        count, size = len(names) or 1, sum((folder / file).stat().st_size for file in names or {SINGLE})
        yield ok(_GROUP, "weights", f"{count} file{'s' if count > 1 else ''}, {size:,} bytes, all complete")


def _file(path: Path, names: set[str]) -> Finding | None:
    if not path.is_file():
        detail = f"is missing, and {len(names)} weights with it"
        return problem(_GROUP, path.name, detail, f"download it into {path.parent}")
    try:
        Shard(path, frozenset(names))
    except CheckpointError as error:
        return problem(_GROUP, path.name, error.problem, error.remedy)
    return None
