"""The interface of a model for an encoder stage."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from omni.errors import ReturnedError
from omni.stage import method_name
from omni_encoder.plan import EncodePlan


@dataclass(frozen=True, slots=True)
class SampleItem:
    """A media item for measurements: its number of embeddings, and features of any content on the host."""

    length: int
    features: Mapping[str, Tensor]


class EncoderModel(nn.Module, ABC):
    """A tower that turns the features of media items into embeddings. `plan` computes on the host all that follows from sizes alone
    (indices, positions, lengths), so that `encode` never synchronizes. An item's output must depend neither on other items in its
    batch nor on padding, except by rounding: operations of another shape may add up in another order."""

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        """The minimum length to which `plan` can pad a batch of these items; None for items that it cannot pad, which run
        uncaptured. For an empty batch, None means that the model pads nothing and has no captured batches; this is the default."""
        return None

    @abstractmethod
    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        """Lays out a batch of items with one batch key. Runs on the host: the only torch operations are views.

        items: tensors by name, as in `MediaItem` payloads. Values may be read if they are small and on the host (grids, lengths);
        of features only the shape is read. length: embeddings to pad the batch to, at least its `padded_length`; shapes then depend
        only on it, and the batch may be empty. None pads nothing.
        """

    @abstractmethod
    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        """Returns the embeddings of a batch, by name; those of its items are consecutive from the start. inputs, segments: those of
        the plan.

        Runs inside a device phase, which is captured for padded plans, with inputs that are initially zero: no synchronization, no
        control flow on tensor values.
        """

    def item_outputs(self, outputs: Mapping[str, Tensor], entries: slice) -> Mapping[str, Tensor]:
        """Views of one item's part of the outputs of `encode`: `entries` of each, unless a model overrides it. Raises
        ReturnedError for outputs with fewer."""
        parts = {name: tensor[entries] for name, tensor in outputs.items()}
        for name, part in parts.items():
            if len(part) != entries.stop - entries.start:
                given = f"{method_name(self.encode, 'encode')} gave {list(outputs[name].shape)} as {name!r}"
                raise ReturnedError(f"{given}, of which {entries.start} to {entries.stop} is an item's", self.encode)
        return parts

    @abstractmethod
    def largest_item(self, length: int) -> SampleItem:
        """The possible item of at most `length` (1 or more) embeddings that takes the most memory to encode. Called at start-up, to
        measure the largest batch. All items from here share a batch key."""
