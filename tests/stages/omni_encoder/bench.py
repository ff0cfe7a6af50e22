"""An encoder stage of a tiny tower, driven by hand-made messages."""

import msgspec
import torch
from torch import Tensor

from omni.device import Device
from omni.payload import Payload
from omni.testing.stages.driver import FailingDriver
from omni_encoder.inputs import Encoded, MediaItem
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker
from tests.support.tower import Tower


class Bench(FailingDriver):
    """lengths: of batches that are captured."""

    def __init__(self, device: Device, lengths: tuple[int, ...] = (), /, **options: int) -> None:
        self.device = device
        self.tower = Tower()
        given = msgspec.structs.replace(EncoderOptions(), **options)
        self.encoder = EncoderWorker("tower", device, self.tower, given, lengths=lengths)
        self.encoder.capture(lengths)
        super().__init__(self.encoder, device.stream("test"))

    def ask(self, request_id: str, *items: list[float], order: tuple[int, int] = (0, 0), cache_salt: str = "") -> None:
        """A whole request with these items."""
        self.open(request_id, order=order, cache_salt=cache_salt)
        for index, values in enumerate(items):
            self.feed_host(request_id, media(index, values))
        self.end(request_id)

    def sums(self, request_id: str) -> dict[int, list[float]]:
        """The request's `sum` outputs by item index."""
        return {index: tensors["sum"].tolist() for index, tensors in self.outputs(request_id).items()}

    def outputs(self, request_id: str) -> dict[int, dict[str, Tensor]]:
        found: dict[int, dict[str, Tensor]] = {}
        for message in self.produced.get(request_id, []):
            assert isinstance(message.payload.meta, Encoded)
            assert message.ready.done()
            tensors = message.payload.tensors
            found[message.payload.meta.index] = {n: t for n, t in tensors.items() if isinstance(t, Tensor)}
        return found


def media(index: int, values: list[float] | Tensor, batch_key: int = 0, field: str = "") -> Payload:
    """values: of an item, by which items are equal; a tensor counts as one embedding."""
    length = len(values) if isinstance(values, list) else 1
    item = MediaItem(index=index, key=str(values), batch_key=batch_key, length=length, field=field)
    return Payload(item, {"x": torch.as_tensor(values), "grid": torch.tensor([length])})
