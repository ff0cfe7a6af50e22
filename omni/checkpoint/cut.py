"""A part of a published weight."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """Entries `start` to `stop` of dimension `dim`, which has `size` entries in the published weight. A parameter has zeros in
    place of entries from `size` on."""

    dim: int
    start: int
    stop: int
    size: int

    @property
    def length(self) -> int:
        """Entries in the parameter."""
        return self.stop - self.start

    @property
    def published(self) -> int:
        """Number of its entries that the published weight has."""
        return max(min(self.stop, self.size) - self.start, 0)

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the published weight whose part has `shape`. Raises ValueError if that is not a part by this cut."""
        if shape[self.dim] != self.length:
            raise ValueError(f"a parameter of shape {tuple(shape)} does not hold {self}")
        return (*shape[: self.dim], self.size, *shape[self.dim + 1 :])

    def split(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Views of a parameter: the entries that the published weight has, and those that are zeros."""
        published, filler = part.split([self.published, self.length - self.published], self.dim)
        return published, filler
