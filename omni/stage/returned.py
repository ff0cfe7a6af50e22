"""Checks of the tensors that a model's methods return, by shape and dtype alone: nothing waits for the device."""

from collections.abc import Sequence
from types import MethodType

import torch

from omni.errors import ReturnedError, type_of


def method_name(code: object, what: str) -> str:
    """`what` a method gave, with the class of the method's object, for an error: `"Talker.forward"`."""
    return f"{type(code.__self__).__name__}.{what}" if isinstance(code, MethodType) else what


def returned_tensor(
    given: object, what: str, *, code: object, shape: Sequence[int], dtype: torch.dtype | None = None, hint: str
) -> torch.Tensor:
    """Checks and returns the result of the method `code`. what, hint: its name and a remedy, for the error. dtype: None for any.

    Raises ReturnedError unless it is a tensor of this shape and dtype.
    """
    if not isinstance(given, torch.Tensor):
        what = method_name(code, what)
        raise ReturnedError(f"{what} gave {type_of(given)}, not a tensor {list(shape)}: {hint}", code)
    if tuple(given.shape) != tuple(shape) or dtype not in (None, given.dtype):
        found, wanted = (
            (f"{given.dtype} {list(given.shape)}", f"{dtype} {list(shape)}")
            if dtype is not None
            else (str(list(given.shape)), str(list(shape)))
        )
        raise ReturnedError(f"{method_name(code, what)} gave {found}, not {wanted}: {hint}", code)
    return given
