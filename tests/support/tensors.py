"""Tensors of payloads that have no page rows."""

from torch import Tensor

from omni.payload import Payload


def tensors_of(payload: Payload) -> dict[str, Tensor]:
    found = {name: tensor for name, tensor in payload.tensors.items() if isinstance(tensor, Tensor)}
    assert len(found) == len(payload.tensors)
    return found
