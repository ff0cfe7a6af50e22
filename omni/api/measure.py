"""How much host memory a request holds."""

import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch
from PIL import Image

from omni.engine import Held
from omni.frontend.base import Prepared

_DEPTH = 8
"""As far as a chat or a prepared one goes: by stage, payloads, what describes one, its placeholders, one of them, its positions."""


_LARGE = 4096
"""Bytes from which on an object is counted once for all requests that hold it."""


def held_by(messages: object) -> Held:
    """What a chat as given keeps: its texts, base64, bytes, arrays, tensors and pictures; those decoded, as they will be.

    Looks no deeper than a chat goes. What is no chat is counted by its shell.
    """
    return _sizes(messages)


def held_prepared(prepared: Prepared) -> Held:
    """What a prepared request keeps: its payloads' tensors, and the arrays in what describes them."""
    return _sizes((list(prepared.inputs.values()), list(prepared.edges.values())))


def _sizes(value: object) -> Held:
    """Every object once. Small ones are one sum: what is counted again and again, under a lock, are the few that are large."""
    # By identity, and kept, so that no other gets the identity of one that is gone.
    leaves = {id(leaf): (leaf, size) for leaf, size in _leaves(value, _DEPTH)}
    large = [(leaf, size) for leaf, size in leaves.values() if size >= _LARGE]
    small = sum(size for _, size in leaves.values() if size < _LARGE)
    return (*large, (object(), small))


def _leaves(value: object, depth: int) -> Iterator[tuple[object, int]]:
    match value:
        case torch.Tensor():
            # A tensor without storage of its own, sparse or quantized, is refused later.
            yield value, value.element_size() * value.numel()
        case np.ndarray():
            yield value, value.nbytes
        case Image.Image():
            yield value, value.width * value.height * max(1, len(value.getbands()))
        case memoryview():
            yield value, value.nbytes
        case Mapping() if depth:
            for key, each in value.items():
                yield from _leaves(key, depth - 1)
                yield from _leaves(each, depth - 1)
        case msgspec.Struct() if depth:
            for each in msgspec.structs.asdict(value).values():
                yield from _leaves(each, depth - 1)
        case list() | tuple() if depth and not _plain(value):
            for each in value:
                yield from _leaves(each, depth - 1)
        case _:
            yield value, sys.getsizeof(value)


def _plain(values: Sequence[object]) -> bool:
    """Whether it is of numbers alone: there may be millions, and none counts for itself."""
    return all(issubclass(kind, int | float) for kind in set(map(type, values)))
