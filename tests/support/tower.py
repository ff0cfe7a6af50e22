"""A tiny encoder whose batches are recorded."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni_encoder.batch import BatchEncoder
from omni_encoder.jobs import Outputs
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.plan import EncodePlan, EncoderInput

POISON = -1.0
"""A feature that `Tower` cannot stand."""


class Tower(EncoderModel):
    """Running sums and doubled features of each item, computed for the whole batch at once; refuses `POISON`.

    batches: items of each batch that was planned. encoded: embeddings of each batch that was encoded, its padding too. segments:
    those of each that was not padded.
    """

    poisoned: type[BaseException] = ValueError
    """The error of a `POISON`."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.encoded: list[int] = []
        self.segments: list[tuple[int, ...]] = []

    def padded_length(self, items: Sequence[Mapping[str, Tensor]]) -> int | None:
        return sum(item["x"].shape[0] for item in items)

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        features = [item["x"] for item in items]
        if items:
            self.batches.append(len(items))
        if any((feature.numpy() == POISON).any() for feature in features):
            raise self.poisoned("poisoned")
        sizes = tuple(feature.shape[0] for feature in features)
        rows = sum(sizes) if length is None else length
        owners = np.full(rows, -1)
        owners[: sum(sizes)] = np.repeat(np.arange(len(sizes)), sizes)
        inputs = {
            "x": EncoderInput((rows, *features[0].shape[1:]) if items else (rows,), torch.float32, tuple(features)),
            "owners": EncoderInput.of(owners),
        }
        return EncodePlan(inputs, sizes, None if length is not None else sizes)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        """By a mask where the batch is padded, by its parts where it is not."""
        x, owners = inputs["x"], inputs["owners"]
        self.encoded.append(x.shape[0])
        if segments is not None:
            self.segments.append(segments)
            return {"sum": torch.cat([part.cumsum(0) for part in x.split(segments)]), "doubled": x * 2}
        before = (owners[:, None] == owners).tril().to(x.dtype)
        return {"sum": before @ x, "doubled": x * 2}

    def largest_item(self, length: int) -> SampleItem:
        return SampleItem(length, {"x": torch.zeros(length), "grid": torch.zeros(3, dtype=torch.int64)})


# An encoder's model run by itself, as its stage does.


def encode(
    model: EncoderModel,
    items: Sequence[Mapping[str, Tensor]],
    device: Device | None = None,
    lengths: Sequence[int] = (),
    *,
    captured: bool = True,
) -> list[Outputs]:
    """The outputs of one batch on `device`, where the model is; the CPU if it is not given. lengths: that it may be padded to,
    captured before unless `captured` is false."""
    device = device or CpuDevice()
    with torch.inference_mode():
        encoder = BatchEncoder(device, device.stream("encode"), model, lengths)
        if captured:
            encoder.capture(lengths)
        batch = encoder.prepare(items)
        assert (batch.captured is not None) == (captured and bool(lengths))
        while not batch.transfer.finished:
            encoder.send(batch)
        encoded = encoder.launch(batch)
        while not encoded.end.done():
            pass
        return encoded.outputs
