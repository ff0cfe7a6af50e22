"""The outputs of a request in a form that can be compared, however a stage divides them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.payload import AudioChunk, GeneratedTokens, PageSlice, Payload


@dataclass(frozen=True, slots=True)
class Values:
    """Outputs of one request, by the type of their meta. Tokens and samples are one after the other; others one by one."""

    parts: Mapping[str, list[object]] = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Sequence[tuple[msgspec.Struct, Mapping[str, Tensor]]]) -> "Values":
        """outputs: metas, each with its tensors in host memory."""
        parts: dict[str, list[object]] = {}
        for meta, tensors in outputs:
            into = parts.setdefault(type(meta).__name__, [])
            if isinstance(meta, GeneratedTokens):
                into.extend(meta.ids)
            elif isinstance(meta, AudioChunk):
                into.extend(meta.samples.tolist())
            else:
                into.append((msgspec.structs.asdict(meta), {name: each.numpy() for name, each in tensors.items()}))
        return cls(parts)

    def difference(self, right: "Values", tolerance: float) -> str:
        """The first difference, in words; empty if they are the same."""
        for name in dict.fromkeys([*right.parts, *self.parts]):
            mine, wanted = self.parts.get(name, []), right.parts.get(name, [])
            for index, pair in enumerate(zip(mine, wanted, strict=False)):
                if not _same(*pair, tolerance):
                    return f"{name} {index} is {_short(pair[0])}, not {_short(pair[1])}"
            if len(mine) != len(wanted):
                return f"there are {len(mine)} {name}, not {len(wanted)}"
        return ""


def expected_values(payloads: Sequence[Payload]) -> Values:
    """The author's own expectation."""
    return Values.of(
        [(each.meta, {n: t for n, t in each.tensors.items() if isinstance(t, Tensor)}) for each in payloads]
    )


def gathered(tensor: Tensor | PageSlice, slots_n: Tensor | None) -> Tensor:
    """The entries of a page slice, or the tensor."""
    if isinstance(tensor, PageSlice):
        assert slots_n is not None
        return tensor.rows(slots_n)
    return tensor


def _same(mine: object, right: object, tolerance: float) -> bool:
    if isinstance(mine, np.ndarray) or isinstance(right, np.ndarray):
        return _same_arrays(np.asarray(mine), np.asarray(right), tolerance)
    if isinstance(mine, float) and isinstance(right, float):
        return _same_arrays(np.asarray(mine), np.asarray(right), tolerance)
    if isinstance(mine, dict) and isinstance(right, dict):
        return mine.keys() == right.keys() and all(_same(mine[key], right[key], tolerance) for key in mine)
    if isinstance(mine, list | tuple) and isinstance(right, list | tuple):
        return len(mine) == len(right) and all(_same(*pair, tolerance) for pair in zip(mine, right, strict=True))
    return bool(mine == right)


def _same_arrays(mine: NDArray[np.generic], right: NDArray[np.generic], tolerance: float) -> bool:
    if mine.shape != right.shape:
        return False
    if not np.issubdtype(right.dtype, np.inexact):
        return bool(np.array_equal(mine, right))
    return bool(np.allclose(mine, right, rtol=tolerance, atol=tolerance, equal_nan=False))


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 120 else f"{text[:120]}..."
