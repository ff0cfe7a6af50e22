"""Whether all weights of a checkpoint are there, complete, and of the model's shapes."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from omni.checkpoint.shards import INDEX, SINGLE, Shard, read_index
from omni.cli.doctor.check import Check, attempt, failed, ok, problem
from omni.cli.target import Target
from omni.device.meta import MetaDevice
from omni.engine import load_stages
from omni.errors import CheckpointError

_GROUP = "model"


def check_weights(target: Target) -> Iterator[Check]:
    """Each missing or broken file, then names and shapes. Reads no weight."""
    if target.engine.options.load_format == "dummy":
        yield ok(_GROUP, "weights", "random ones are asked for")
        return
    broken = list(_files(target.checkpoint.path))
    yield from broken
    if any(check.status == "problem" for check in broken):
        return
    tried = attempt(
        _GROUP,
        "shapes",
        # Copies to the meta device check everything and transfer nothing.
        lambda: load_stages(target.plan, target.checkpoint, MetaDevice(), target.engine.dtype, "auto"),
        lambda loaded: f"all weights of {len(loaded)} stages are there, in the shapes that config.json gives",
    )
    yield tried.check


def _files(folder: Path) -> Iterator[Check]:
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


def _file(path: Path, names: set[str]) -> Check | None:
    if not path.is_file():
        detail = f"is missing, and {len(names)} weights with it"
        return problem(_GROUP, path.name, detail, f"download it into {path.parent}")
    try:
        Shard(path, frozenset(names))
    except CheckpointError as error:
        return problem(_GROUP, path.name, error.problem, error.remedy)
    return None
