"""Checks of the results of methods: tensors of a model, by shape and dtype alone, so without a wait for the device, and the truth
value of a worker's result."""

from collections.abc import Sequence
from types import CoroutineType, MethodType

import torch

from omni.errors import ReturnedError, type_of


def method_name(code: object, what: str) -> str:
    """The method's name, preceded by the class of its object, for an error: `"Talker.forward"`. what: the name without the
    class."""
    return f"{type(code.__self__).__name__}.{what}" if isinstance(code, MethodType) else what


def checked_moved(returned: object, method: str, code: object) -> bool:
    """Whether a worker's method did something: the truth value of its result. method, code: the name of the method, and the method.

    Raises ReturnedError for an object that is always true, such as a generator or a coroutine, whose code has not run.
    """
    if any("__bool__" in vars(kind) or "__len__" in vars(kind) for kind in type(returned).__mro__):
        return bool(returned)
    if isinstance(returned, CoroutineType):
        returned.close()  # Python would warn that nothing has awaited it
    raise ReturnedError(
        f"{method} returned {type_of(returned)}: return whether something was done, True or False", code
    )


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
