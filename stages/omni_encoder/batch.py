"""One batch on the device.

| buffer | written by | read by | freed |
|---|---|---|---|
| features on the host | front end | `copy_features` | after `end`, until which the jobs are kept |
| `inputs` on the device | `copy_features` | `encode_items` | in stream order: both phases allocate on it |
| `outputs` | `encode_items` | consumers, after `end` | when neither the cache nor an unfree `Hold` needs them |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omni.device import Device, Event, Stream, SyncPoint, may_sync
from omni_encoder.cache import Outputs
from omni_encoder.model import EncoderModel
from omni_encoder.request import Job


@dataclass(frozen=True, slots=True)
class EncodeBatch:
    """A launched batch. outputs: one per job, filled by the device; only to be read once `end` is done."""

    jobs: list[Job]
    outputs: list[Outputs]
    end: Event


def launch_batch(device: Device, stream: Stream, model: EncoderModel, jobs: list[Job]) -> EncodeBatch:
    """Enqueues the copies of the jobs' features and their encoding."""
    inputs: list[dict[str, Tensor]] = []
    outputs: list[Outputs] = []
    features = [job.features for job in jobs]
    device.launch(stream, copy_features, features, model.host_inputs, device.torch_device, inputs)
    device.launch(stream, encode_items, model, inputs, outputs)
    return EncodeBatch(jobs, outputs, device.record(stream))


def copy_features(
    features: Sequence[Mapping[str, Tensor]],
    host_inputs: frozenset[str],
    target: torch.device,
    inputs: list[dict[str, Tensor]],
) -> None:
    with may_sync(SyncPoint.MEDIA_UPLOAD):
        for item in features:
            inputs.append({n: t if n in host_inputs else t.to(target, non_blocking=True) for n, t in item.items()})


def encode_items(model: EncoderModel, inputs: list[dict[str, Tensor]], outputs: list[Outputs]) -> None:
    with may_sync(SyncPoint.ENCODE):
        encoded = model.encode(inputs)
    if len(encoded) != len(inputs):
        raise ValueError(f"the model gave {len(encoded)} outputs for {len(inputs)} items")
    outputs.extend({name: _owned(tensor) for name, tensor in item.items()} for item in encoded)


def _owned(tensor: Tensor) -> Tensor:
    # A view would keep the memory of its whole batch alive for as long as one item is cached.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
