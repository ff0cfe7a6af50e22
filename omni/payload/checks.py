"""Checks of the tensors of payloads where plugins make them, by type and layout alone: so the error names their producer, not the
connector or the stage that reads them."""

from collections.abc import Mapping

import torch

from omni.errors import ReturnedError, is_unicode, quoted, type_of
from omni.payload.payload import PageSlice

_MOST_EXPANDED = 1 << 32
"""Bytes of an expanded tensor, whose copy needs memory that the tensor itself does not have."""


def checked_tensors(tensors: object, what: str, code: object) -> dict[str, torch.Tensor | PageSlice]:
    """The tensors of a payload, as a plain dict. what: their field, for errors. code: the function that made them.

    Raises ReturnedError unless they are dense tensors or page slices by name, and the errors of a plugin's own mapping.
    """
    if type(tensors) is not dict:
        if not isinstance(tensors, Mapping):
            raise ReturnedError(f"{what} is {type_of(tensors)}: give a dict of tensors by name", code)
        tensors = dict(tensors)
    for name, tensor in tensors.items():
        if type(name) is not str or not name.isascii():
            _check_name(name, what, code)
        if not (_is_plain(tensor) if type(tensor) is torch.Tensor else type(tensor) is PageSlice):
            _check_tensor(name, tensor, what, code)
    return tensors


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its values are in memory, one after the other: of a tensor that is sparse or on meta, or whose memory was freed, they
    are not. It runs for each payload."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    if not tensor.is_contiguous():
        return False
    end = tensor.storage_offset() + tensor.numel()
    return end * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _check_name(name: object, what: str, code: object) -> None:
    if type(name) is not str or not is_unicode(name):
        raise ReturnedError(f"{what} has the name {quoted(name)}: give names of valid Unicode", code)


def _check_tensor(name: str, tensor: object, what: str, code: object) -> None:
    problem = f"{what}[{quoted(name)}] is"
    if not isinstance(tensor, torch.Tensor | PageSlice):
        raise ReturnedError(f"{problem} {type_of(tensor)}: give a torch.Tensor", code)
    if isinstance(tensor, PageSlice):
        return
    if tensor.layout is not torch.strided:
        raise ReturnedError(f"{problem} {tensor.layout}: give a dense tensor, as of Tensor.to_dense", code)
    if tensor.is_nested:
        raise ReturnedError(f"{problem} nested: give a tensor for each of its parts", code)
    if tensor.is_quantized:
        raise ReturnedError(f"{problem} quantized: give its values, as of Tensor.dequantize", code)
    if tensor.is_meta:
        raise ReturnedError(
            f"{problem} on the meta device, which holds no values: give one of the stage's device", code
        )
    held = tensor.untyped_storage().nbytes()
    if _end(tensor) > held:  # reading it would end the process
        problem = f"{problem} {list(tensor.shape)}, and its memory was freed: it has {held:,} bytes"
        raise ReturnedError(f"{problem}; give a tensor that owns its values, as of Tensor.clone", code)
    if tensor.nbytes > max(held, _MOST_EXPANDED):
        shape = f"{list(tensor.shape)}, expanded from {held:,} bytes to {tensor.nbytes:,}"
        raise ReturnedError(f"{problem} {shape}: give one that fits into memory", code)


def _end(tensor: torch.Tensor) -> int:
    """The end of its last value in its storage, in bytes."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()
