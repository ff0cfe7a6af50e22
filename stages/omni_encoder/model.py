"""What a model author writes for an encoder stage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from omni_encoder.plan import EncodePlan


@dataclass(frozen=True, slots=True)
class SampleItem:
    """A media item for measuring: how many embeddings it becomes, and its features, on the host, whatever is in them."""

    length: int
    features: Mapping[str, Tensor]


class EncoderModel(nn.Module, ABC):
    """A tower that turns the features of media items into embeddings.

    Whatever follows from sizes alone (indices, positions, lengths) is worked out by `plan` on the host, so that `encode` has
    nothing to ask the device. An item's output must not depend on the others in its batch, nor on padding.
    """

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        """The least length that `plan` can pad a batch of these items to; None for items that it cannot pad: they run uncaptured.

        Of no items it is None if the model pads nothing, as here: then it has no captured batches.
        """
        return None

    @abstractmethod
    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        """Lays out a batch of items of one batch key. Host only: no torch operations but views.

        items: tensors by name, as `MediaItem` payloads have them. Their values may be read where they are small and on the host
        (grids, lengths); of features only the shape is looked at. length: embeddings to pad the batch to, at least its
        `padded_length`; then shapes depend on nothing else, and there may be no items. None pads nothing, as for all items
        whose `padded_length` is None.
        """

    @abstractmethod
    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        """The embeddings of a batch, by name; those of its items follow one another from the start.

        Runs inside a device phase, which is captured for padded plans, on inputs that are all zeros at first: no
        synchronization, no control flow on tensor values. inputs: those of the plan, on the device. segments: those of the plan.
        """

    def item_outputs(self, outputs: Mapping[str, Tensor], places: slice) -> Mapping[str, Tensor]:
        """Views of one item's part of what `encode` gave: rows `places`, unless a model has its embeddings elsewhere."""
        return {name: tensor[places] for name, tensor in outputs.items()}

    @abstractmethod
    def largest_item(self, length: int) -> SampleItem:
        """The item of at most `length` (1 or more) embeddings that takes most memory to encode, among those that requests bring.

        Called at start-up, to measure what the largest batch takes. Items made here share a batch key.
        """
