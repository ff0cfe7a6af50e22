"""Fills a module's parameters, in place, from a checkpoint."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from omni.checkpoint.checkpoint import Checkpoint
from omni.checkpoint.checks import RESTORE_CONFIG
from omni.checkpoint.finite import check_finite
from omni.checkpoint.stream import stream_weights
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a published weight goes: `parameter[index]`, or the whole parameter if `index` is empty.

    A stacked parameter takes many weights, each its own part. The gate of expert 3, in a `[E, 2I, D]` parameter whose first I rows
    are gates: `Destination("mlp.experts_gate_up", (3, slice(0, I)))`. Slices have a start and a stop.
    """

    parameter: str
    index: tuple[int | slice, ...] = ()


Rename = Callable[[str], Destination | None]
"""From a published name to its destination, or None for a weight that this module does not use."""

_NOT_STACKED: Mapping[str, Destination] = MappingProxyType({})


def load_module(
    module: nn.Module,
    checkpoint: Checkpoint,
    rename: Rename,
    *,
    prefixes: Sequence[str] = ("",),
    stacked: Mapping[str, Destination] = _NOT_STACKED,
    device: Device | None = None,
) -> None:
    """Copies the weights whose names start with one of `prefixes` into parameters and persistent buffers of `module`.

    The module stands on its device, in its dtype. Weights are read file by file, a few MB at a time, and cast where they go to: the
    host never holds a file. Names and shapes are checked before anything is copied. A module on the meta device is only checked.

    stacked: names that `rename` may give as if they were parameters, and the rows of a stacked parameter that they stand for.
    device: the module's; None for one on the host.

    Raises CheckpointError for a weight with no such parameter, a wrong tensor shape, two weights for one place, and
    parameters that no weight fills; and, once they are there, for weights that are not finite in the module's dtype.
    """
    targets: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    places = _places(checkpoint, targets, rename, prefixes, stacked)
    _check_filled(targets, places, stacked, checkpoint)
    with torch.inference_mode():
        views = {name: targets[place.parameter].detach()[place.index] for name, place in places.items()}
        there = [(span, views[name]) for name, span in checkpoint.spans(views) if not views[name].is_meta]
        # Between two places of host memory there is nothing to overlap: streams are for devices that have memory of their own.
        apart = device is not None and device.torch_device.type == "cuda"
        stream_weights(there, device if device is not None and apart else CpuDevice())
        filled = {id(target): target.detach() for target in (targets[place.parameter] for place in places.values())}
        check_finite(views, filled.values())


def _places(
    checkpoint: Checkpoint,
    targets: Mapping[str, torch.Tensor],
    rename: Rename,
    prefixes: Sequence[str],
    stacked: Mapping[str, Destination],
) -> dict[str, Destination]:
    places: dict[str, Destination] = {}
    taken: dict[tuple[str, str], str] = {}
    for name in checkpoint.names():
        destination = rename(name) if name.startswith(tuple(prefixes)) else None
        if destination is None:
            continue
        if not destination.index:
            destination = stacked.get(destination.parameter, destination)
        if destination.parameter not in targets:
            problem = f"is unexpected: the model has no parameter {destination.parameter!r}"
            raise CheckpointError(name, problem, "use a checkpoint whose config.json describes its weights")
        _check_shape(name, checkpoint.shape(name), targets[destination.parameter], destination)
        other = taken.setdefault(_key(destination), name)
        if other != name:
            raise CheckpointError(name, f"goes where {other} goes", "use a checkpoint that holds each weight once")
        places[name] = destination
    return places


def _key(destination: Destination) -> tuple[str, str]:
    # repr: slices are not hashable before Python 3.12.
    return destination.parameter, repr(destination.index)


def _check_shape(name: str, found: tuple[int, ...], target: torch.Tensor, destination: Destination) -> None:
    try:
        expected = tuple(target[destination.index].shape)
    except IndexError:
        problem = f"has no place in parameter {destination.parameter!r} of shape {tuple(target.shape)}"
        raise CheckpointError(name, problem, RESTORE_CONFIG) from None
    if found != expected:
        problem = f"wrong tensor shape: expected {expected}, found {found}"
        raise CheckpointError(name, problem, RESTORE_CONFIG)


def _check_filled(
    targets: Mapping[str, torch.Tensor],
    places: Mapping[str, Destination],
    stacked: Mapping[str, Destination],
    checkpoint: Checkpoint,
) -> None:
    # By identity: a tied parameter has several names, and a weight for one of them fills all.
    filled: dict[int, list[Destination]] = defaultdict(list)
    for place in places.values():
        filled[id(targets[place.parameter])].append(place)
    parts: dict[str, list[str]] = defaultdict(list)
    for part, place in stacked.items():
        parts[place.parameter].append(part)
    taken = {_key(place) for place in places.values()}
    missing: list[str] = []
    for name, target in targets.items():
        here = filled[id(target)]
        if sum(target[place.index].numel() for place in here) >= target.numel():
            continue
        if parts[name]:
            missing += [part for part in parts[name] if _key(stacked[part]) not in taken]
        else:
            missing += _missing_rows(name, target, here)
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        problem = f"has no weights for {len(missing)} parameters of the model: {some}"
        raise CheckpointError(str(checkpoint.path), problem, "download the whole checkpoint again")


def _missing_rows(name: str, target: torch.Tensor, places: Sequence[Destination]) -> list[str]:
    """The entries along the first dimension of which something is missing, or the name alone if nothing is there at all."""
    if not places:
        return [name]
    counts = [0] * target.shape[0]
    for place in places:
        rows = place.index[0]
        every = range(*rows.indices(len(counts))) if isinstance(rows, slice) else (rows,)
        for row in every:
            counts[row] += target[place.index].numel() // len(every)
    whole = target.numel() // len(counts)
    return [f"{name}[{row}]" for row, count in enumerate(counts) if count < whole]
