"""Fills a module's parameters, in place, from a checkpoint; or with random weights, to measure speed or try a pipeline."""

import zlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import NoReturn, Protocol

import torch
from torch import nn

from omni.checkpoint.checkpoint import Checkpoint
from omni.checkpoint.checks import RESTORE_CONFIG
from omni.checkpoint.cut import Cut
from omni.checkpoint.stream import stream_weights
from omni.device import Device, SyncPoint, may_sync
from omni.device.cpu import CpuDevice
from omni.errors import CheckpointError, plugin_error
from omni.utils.origin import caller, with_place

Initializer = Callable[[str, torch.Tensor, torch.Generator], None]
"""Fills a parameter in place: (name, parameter, generator on the parameter's device)."""


def default_init(name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices from normal(0, 0.02), biases zero, other vectors (norm weights) one."""
    if tensor.dim() > 1:
        tensor.normal_(0.0, 0.02, generator=generator)
    else:
        tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def fill_dummy(module: nn.Module, seed: int, init: Initializer = default_init) -> None:
    """Fills every parameter of `module` in place, on its own device, without a host copy. Buffers stay as they are; parameters on
    the meta device are skipped. Where ranks hold different weights (`Cut`, `MissingLayer`), those that several hold whole are
    equal."""
    generators: dict[torch.device, torch.Generator] = {}
    starts: dict[str, set[int | str]] = defaultdict(set)
    for weight, place in stacked_destinations(module).items():
        if place.cut is not None:
            # Identifies the part of this rank: the start of its cut, or the weights that it lacks.
            starts[place.parameter].add(weight if place.empty else place.cut.start)
    absent = any(isinstance(part, MissingLayer) for part in module.modules())
    with torch.inference_mode():
        for name, parameter in module.named_parameters():
            device = parameter.device
            if device.type == "meta":
                continue
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            if starts or absent:
                # The number of earlier draws differs among ranks, so each parameter has a seed of its own.
                own = f"{seed} {name} {sorted(starts.get(name, ()), key=str)}"
                generators[device].manual_seed(zlib.crc32(own.encode()))
            init(name, parameter, generators[device])


@dataclass(frozen=True, slots=True)
class Destination:
    """The place of a published weight: `parameter[index]`, or the whole parameter if `index` is empty. A stacked parameter holds
    several weights, each in its own part. The gate of expert 3, in an `[E, 2I, D]` parameter whose first I rows are gates:
    `Destination("mlp.experts_gate_up", (3, slice(0, I)))`. Slices have a start and a stop. cut: the part of the weight that goes
    there; None for all of it, and an empty one for a weight that other ranks hold."""

    parameter: str
    index: tuple[int | slice, ...] = ()
    cut: Cut | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing of the weight goes there."""
        return self.cut is not None and not self.cut.length


class StackedWeights(ABC):
    """A base class for modules that hold several published weights, or a part of one, in one parameter."""

    @abstractmethod
    def stacked_weights(self, name: str) -> Mapping[str, Destination]:
        """The destination of each such weight, by full name. name: the module's own name, empty for the outermost."""


class MissingLayer(nn.Module):
    """A base class for modules whose weights another rank holds: those in a checkpoint are skipped."""


class WeightsContext(Protocol):
    """The part of a `StageContext` that `load_weights` reads. dummy_seed: the seed of random weights."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def device(self) -> Device: ...
    @property
    def load_format(self) -> str: ...
    @property
    def dummy_seed(self) -> int: ...


_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_SAME_NAMES: Mapping[str, str] = MappingProxyType({"": ""})


def load_weights(module: nn.Module, context: WeightsContext, prefixes: Mapping[str, str]) -> None:
    """Fills a stage's module with published weights (see `load_module`), or with random ones for `"dummy"`. Disables gradients."""
    module.requires_grad_(False)
    if context.load_format == "dummy":
        fill_dummy(module, context.dummy_seed)
    else:
        load_module(module, context.checkpoint, prefixes, context.device)


def load_module(
    module: nn.Module, checkpoint: Checkpoint, prefixes: Mapping[str, str] = _SAME_NAMES, device: Device | None = None
) -> None:
    """Copies published weights into parameters and persistent buffers of `module`, which is on its device, in its dtype.

    prefixes: maps the start of a published name to its replacement in the module. The first match applies; weights without a match
    are skipped. device: the module's device; None for the host.

    Weights are read file by file, a few MB at a time, and cast on the device: the host never holds a whole file. Names and shapes
    are checked before any copy. A module on the meta device is only checked.

    Raises CheckpointError for a weight without a parameter, a wrong shape, two weights for one place, parameters without a weight,
    and, after the copy, weights that are not finite in the module's dtype.
    """
    targets: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    stacked = stacked_destinations(module)
    absent = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, MissingLayer))
    destinations = _destinations(checkpoint, targets, prefixes, stacked, absent)
    _check_filled(targets, destinations, stacked, checkpoint, prefixes)
    with torch.inference_mode():
        views = {name: _published_view(targets, destination) for name, destination in destinations.items()}
        there = [
            (replace(span, cut=destinations[name].cut), views[name])
            for name, span in checkpoint.spans(views)
            if not views[name].is_meta
        ]
        # Copies within host memory have nothing to overlap: only devices with memory of their own need streams.
        apart = device is not None and device.torch_device.type == "cuda"
        stream_weights(there, device if device is not None and apart else CpuDevice())
        filled = {
            id(target): target.detach()
            for target in (targets[destination.parameter] for destination in destinations.values())
        }
        check_finite(views, filled.values())


def _published_view(targets: Mapping[str, torch.Tensor], destination: Destination) -> torch.Tensor:
    """The view of a parameter that a weight, or its part, fills. Entries after a part at the end of a weight become zero."""
    view = targets[destination.parameter].detach()[destination.index]
    if destination.cut is None:
        return view
    published, filler = destination.cut.split(view)
    filler.zero_()
    return published


def stacked_destinations(module: nn.Module) -> dict[str, Destination]:
    """The part of a parameter for each stacked weight of `module`, by published name."""
    destinations: dict[str, Destination] = {}
    for name, part in module.named_modules():
        if isinstance(part, StackedWeights):
            destinations |= part.stacked_weights(name)
    return destinations


def _destinations(
    checkpoint: Checkpoint,
    targets: Mapping[str, torch.Tensor],
    prefixes: Mapping[str, str],
    stacked: Mapping[str, Destination],
    absent: tuple[str, ...],
) -> dict[str, Destination]:
    """absent: the starts of names of weights that other ranks hold."""
    destinations: dict[str, Destination] = {}
    taken: dict[tuple[str, str], str] = {}
    for name in checkpoint.names():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is None:
            continue
        local = prefixes[prefix] + name.removeprefix(prefix)
        if local.startswith(absent):
            continue
        destination = stacked.get(local, Destination(local))
        if destination.parameter not in targets:
            problem = f"is unexpected: the model has no parameter {destination.parameter!r}"
            raise CheckpointError(name, problem, "use a checkpoint whose config.json describes its weights")
        expected, found = tuple(targets[destination.parameter][destination.index].shape), checkpoint.shape(name)
        if destination.cut is not None:
            expected = destination.cut.whole_shape(expected)
        if found != expected:
            raise CheckpointError(name, f"wrong tensor shape: expected {expected}, found {found}", RESTORE_CONFIG)
        other = name if destination.empty else taken.setdefault(_key(destination), name)
        if other != name:
            raise CheckpointError(
                name, f"has the same destination as {other}", "use a checkpoint that holds each weight once"
            )
        destinations[name] = destination
    return destinations


def _key(destination: Destination) -> tuple[str, str]:
    # repr: slices are not hashable before Python 3.12.
    return destination.parameter, repr(destination.index)


def _check_filled(
    targets: Mapping[str, torch.Tensor],
    destinations: Mapping[str, Destination],
    stacked: Mapping[str, Destination],
    checkpoint: Checkpoint,
    prefixes: Mapping[str, str],
) -> None:
    # By identity: a tied parameter has several names, and a weight for one of them fills all.
    filled: dict[int, list[Destination]] = defaultdict(list)
    for destination in destinations.values():
        filled[id(targets[destination.parameter])].append(destination)
    parts: dict[str, list[str]] = defaultdict(list)
    for part, destination in stacked.items():
        if not destination.empty:
            parts[destination.parameter].append(part)
    taken = {_key(destination) for destination in destinations.values()}
    missing: list[str] = []
    for name, target in targets.items():
        if sum(target[destination.index].numel() for destination in filled[id(target)]) < target.numel():
            missing += [part for part in parts[name] if _key(stacked[part]) not in taken] or [name]
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        problem = f"has no weights for {len(missing)} parameters of the model: {some}"
        idle = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in checkpoint.names())]
        if idle:
            _refuse_prefixes(idle, checkpoint, problem)
        remedy = "correct the names of the model's parameters, or the prefixes, if the checkpoint is complete"
        raise CheckpointError(str(checkpoint.path), with_place(problem, caller()), remedy)


def _refuse_prefixes(idle: Sequence[str], checkpoint: Checkpoint, problem: str) -> NoReturn:
    """Raises PluginError for prefixes that no weight has."""
    starts = sorted({f"{name.partition('.')[0]}." for name in checkpoint.names()})
    near = get_close_matches(idle[0], starts, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"weights begin with {', '.join(map(repr, starts[:8]))}"
    quoted = ", ".join(map(repr, idle))
    none = f"no weight begins with {quoted}, and the checkpoint {problem}"
    raise plugin_error("load_weights.prefixes", with_place(none, caller()), remedy)


def check_finite(weights: Mapping[str, torch.Tensor], held: Iterable[torch.Tensor]) -> None:
    """Raises CheckpointError for a weight with a NaN or an infinity. weights: views of the parameters, by published name. held:
    these parameters, on one device. Checks all in place once they are loaded: one pass over memory, a few launches on a GPU and
    about 1% of the loading time. The host waits for it once."""
    parameters = [tensor for tensor in held if tensor.dtype in _FLOATS and tensor.numel() and not tensor.is_meta]
    if parameters and not _largest(parameters).isfinite().all():
        filled = ((name, weight) for name, weight in weights.items() if weight.numel())
        name = next(name for name, weight in filled if not _largest([weight]).isfinite().all())
        problem = f"holds numbers that are not finite in {str(weights[name].dtype).removeprefix('torch.')}"
        raise CheckpointError(name, problem, "download the shard again, or use a dtype that holds them")


def _largest(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The largest magnitude in each tensor, or its non-finite value, on the host."""
    if tensors[0].device.type == "cuda":
        with may_sync(SyncPoint.LOAD):
            return torch.stack(torch._foreach_norm(tensors, torch.inf, dtype=torch.float32)).cpu()
    # amin and amax: faster than norms on the CPU.
    return torch.stack([torch.stack(torch.aminmax(tensor)).float().abs().amax() for tensor in tensors])
