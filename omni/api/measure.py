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
"""As far as a chat or a prepared one goes: by stage, payloads, what describes one, its segments, one of them, its positions."""


def held_by(messages: object) -> Held:
    """What a chat as given keeps: its texts, base64, bytes, arrays, tensors and pictures; those decoded, as they will be.

    Looks no deeper than a chat goes. What is no chat is counted by its shell.
    """
    return tuple(_leaves(messages, _DEPTH))


def held_prepared(prepared: Prepared) -> Held:
    """What a prepared request keeps: its payloads' tensors, and the arrays in what describes them."""
    return tuple(_leaves((list(prepared.inputs.values()), list(prepared.edges.values())), _DEPTH))


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
            for each in value.values():
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
    """Whether it begins with a number: such a list holds nothing else that counts."""
    return bool(values) and isinstance(values[0], int | float)
