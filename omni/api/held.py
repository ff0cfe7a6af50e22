"""The memory that waiting requests hold: a chat as given, and a prepared one."""

import sys
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import torch
from PIL import Image

from omni.engine import Held
from omni.frontend.base import Prepared

_DEPTH = 8
"""Nesting depth of a chat and of a prepared request: stages, payloads, a payload, its struct, placeholders, one of them,
positions."""
_LARGE = 4096
"""Objects of at least this number of bytes are counted once, even if several requests hold them."""


def held_by(messages: object) -> Held:
    """The memory of a chat as given: its texts, base64, bytes, arrays, tensors and decoded pictures, as deep as a chat can be. Of
    other objects, the outermost is counted."""
    # Every object once, by identity; kept, so that no new object gets the identity of a freed one.
    leaves = {id(leaf): (leaf, size) for leaf, size in _leaves(messages, _DEPTH)}
    # Small ones are one sum, so that only the few large ones are compared under a lock.
    large = [(leaf, size) for leaf, size in leaves.values() if size >= _LARGE]
    small = sum(size for _, size in leaves.values() if size < _LARGE)
    return (*large, (object(), small))


def held_prepared(prepared: Prepared) -> Held:
    """The memory of a prepared request: its payloads' tensors, and the arrays in their structs."""
    return held_by((list(prepared.inputs.values()), list(prepared.edges.values())))


def _leaves(value: object, depth: int) -> Iterator[tuple[object, int]]:
    match value:
        case torch.Tensor():
            # A tensor without storage of its own, sparse or quantized, is refused later.
            yield value, value.element_size() * value.numel()
        case np.ndarray() | memoryview():
            yield value, value.nbytes
        case Image.Image():
            yield value, value.width * value.height * max(1, len(value.getbands()))
        case Mapping() if depth:
            for key, each in value.items():
                yield from _leaves(key, depth - 1)
                yield from _leaves(each, depth - 1)
        case msgspec.Struct() if depth:
            for each in msgspec.structs.asdict(value).values():
                yield from _leaves(each, depth - 1)
        # A list may hold millions of numbers, so they are not counted one by one.
        case list() | tuple() if depth and not all(issubclass(kind, int | float) for kind in set(map(type, value))):
            for each in value:
                yield from _leaves(each, depth - 1)
        case _:
            yield value, sys.getsizeof(value)
