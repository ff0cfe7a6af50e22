"""Names of buffers: the expression by which a phase's code reaches them."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

import msgspec
from torch import Tensor, nn

from omni.device import Phase
from omni.testing.simulation.shadow import key_of

_DEPTH = 4


def name_buffer(phase: Phase, buffers: tuple[object, ...], tensor: Tensor) -> str:
    """Name, type and shape of a tensor that the phase accesses. No name if no argument leads to the tensor."""
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    key = key_of(tensor)
    names = list(inspect.signature(phase).parameters)
    for position, buffer in enumerate(buffers):
        name = names[position] if position < len(names) else f"argument {position}"
        for path, found in _tensors(name, buffer, _DEPTH):
            if key_of(found) == key:
                return f"{path} ({kind})"
    return f"a tensor ({kind})"


def _tensors(path: str, value: object, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_parameters())
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_buffers())
    elif depth:
        for name, part in _parts(value):
            yield from _tensors(path + name, part, depth - 1)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif is_dataclass(value):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", part) for name, part in msgspec.structs.asdict(value).items())
    else:
        try:
            own = vars(value)
        except TypeError:  # no signature
            return
        yield from ((f".{name}", part) for name, part in own.items())
