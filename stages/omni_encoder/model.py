"""What a model author writes for an encoder stage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class SampleItem:
    """A media item for measuring: how many embeddings it becomes, and its features, on the host, whatever is in them."""

    length: int
    features: Mapping[str, Tensor]


class EncoderModel(nn.Module, ABC):
    """A tower that turns the features of media items into embeddings."""

    host_inputs: ClassVar[frozenset[str]] = frozenset()
    """Names of inputs that stay on the host: small integers (grids, lengths) that decide shapes, which `encode` would
    otherwise have to wait for the device to learn."""

    @abstractmethod
    def encode(self, items: Sequence[Mapping[str, Tensor]]) -> Sequence[Mapping[str, Tensor]]:
        """Encodes items of one batch key; one output per item, in order.

        Runs inside a device phase. Takes each item's tensors by name, on the device but for `host_inputs`, and gives
        device tensors. An item's output must not depend on the others in its batch.
        """

    @abstractmethod
    def largest_item(self, length: int) -> SampleItem:
        """The item of at most `length` (1 or more) embeddings that takes most memory to encode, among those that requests bring.

        Called at start-up, to measure what the largest batch takes. Items made here share a batch key.
        """
