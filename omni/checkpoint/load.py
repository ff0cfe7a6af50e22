"""Fills a module's parameters, in place, from a checkpoint."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from omni.checkpoint.checkpoint import Checkpoint
from omni.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a published weight goes: `parameter[index]`, or the whole parameter if `index` is empty.

    A stacked parameter takes many weights. The gate of expert 3, in a `[E, 2I, D]` parameter whose first I rows are
    gates: `Destination("mlp.experts_gate_up", (3, slice(0, I)))`. The first entry of an index is an int.
    """

    parameter: str
    index: tuple[int, *tuple[int | slice, ...]] | tuple[()] = ()


Rename = Callable[[str], Destination | None]
"""From a published name to its destination, or None for a weight that this module does not use."""


def load_module(module: nn.Module, checkpoint: Checkpoint, rename: Rename, *, prefixes: Sequence[str] = ("",)) -> None:
    """Copies the weights whose names start with one of `prefixes` into parameters and persistent buffers of `module`.

    The module stands on its device, in its dtype; weights are cast as they are copied, file by file, so that the host
    never holds more than one file. Names and shapes are checked before anything is copied.

    Raises CheckpointError for a weight with no such parameter, a wrong tensor shape, two weights for one place, and
    parameters that no weight fills.
    """
    targets: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    places = _places(checkpoint, targets, rename, prefixes)
    _check_filled(targets, places.values(), checkpoint)
    with torch.inference_mode():
        for name, tensor in checkpoint.by_shard(places):
            place = places[name]
            targets[place.parameter][place.index].copy_(tensor)


def _places(
    checkpoint: Checkpoint, targets: dict[str, torch.Tensor], rename: Rename, prefixes: Sequence[str]
) -> dict[str, Destination]:
    places: dict[str, Destination] = {}
    taken: dict[tuple[str, str], str] = {}
    for name in checkpoint.names():
        destination = rename(name) if name.startswith(tuple(prefixes)) else None
        if destination is None:
            continue
        if destination.parameter not in targets:
            problem = f"is unexpected: the model has no parameter {destination.parameter!r}"
            raise CheckpointError(name, problem, "use a checkpoint whose config.json describes its weights")
        _check_shape(name, checkpoint.shape(name), targets[destination.parameter], destination)
        # repr: slices are not hashable before Python 3.12.
        other = taken.setdefault((destination.parameter, repr(destination.index)), name)
        if other != name:
            raise CheckpointError(name, f"goes where {other} goes", "use a checkpoint that holds each weight once")
        places[name] = destination
    return places


def _check_shape(name: str, found: tuple[int, ...], target: torch.Tensor, destination: Destination) -> None:
    try:
        expected = tuple(target[destination.index].shape)
    except IndexError:
        problem = f"has no place in parameter {destination.parameter!r} of shape {tuple(target.shape)}"
        raise CheckpointError(name, problem, "use the config.json that belongs to these weights") from None
    if found != expected:
        problem = f"wrong tensor shape: expected {expected}, found {found}"
        raise CheckpointError(name, problem, "use the config.json that belongs to these weights")


def _check_filled(targets: dict[str, torch.Tensor], places: Iterable[Destination], checkpoint: Checkpoint) -> None:
    # By identity: a tied parameter has several names, and a weight for one of them fills all.
    filled: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for place in places:
        target = targets[place.parameter]
        filled[id(target)][place.index[0] if place.index else -1] += target[place.index].numel()
    missing: list[str] = []
    for name, target in targets.items():
        counts = filled[id(target)]
        if sum(counts.values()) >= target.numel():
            continue
        if not counts:
            missing.append(name)
        else:
            whole = target.numel() // target.shape[0]
            missing += [f"{name}[{i}]" for i in range(target.shape[0]) if counts[i] < whole]
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        problem = f"has no weights for {len(missing)} parameters of the model: {some}"
        raise CheckpointError(str(checkpoint.path), problem, "download the whole checkpoint again")
