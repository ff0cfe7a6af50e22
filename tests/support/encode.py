"""An encoder's model run by itself, as its stage does."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from omni.device import Device
from omni.device.cpu import CpuDevice
from omni_encoder.batch import BatchEncoder
from omni_encoder.cache import Outputs
from omni_encoder.model import EncoderModel


def encode(
    model: EncoderModel,
    items: Sequence[Mapping[str, Tensor]],
    device: Device | None = None,
    lengths: Sequence[int] = (),
) -> list[Outputs]:
    """The outputs of one batch on `device`, where the model is; the CPU if it is not given. lengths: captured before."""
    device = device or CpuDevice()
    with torch.inference_mode():
        encoder = BatchEncoder(device, device.stream("encode"), model, lengths)
        encoder.capture(lengths)
        batch = encoder.prepare(items)
        assert (batch.captured is not None) == bool(lengths)
        while not batch.transfer.over:
            encoder.send(batch)
        encoded = encoder.launch(batch)
        while not encoded.end.done():
            pass
        return encoded.outputs
