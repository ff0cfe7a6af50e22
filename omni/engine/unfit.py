"""Attributes exceptions of plugin code that reads config.json to the plugin, or to the file."""

import re

from omni.errors import CheckpointError, OmniError, ReturnedError, fault_of, plugin_error
from omni.pipeline.pipeline import UnknownPartError
from omni.utils.origin import raised_in

_FROM_VALUES = (ValueError, TypeError, ArithmeticError, LookupError)
"""Errors of code that computes with a value of config.json that it did not expect."""
_CALL = re.compile(r"(unexpected|missing|takes|required)\b.*\bargument", re.IGNORECASE)
"""Errors of a call whose arguments do not fit the function, of Python and of msgspec."""


def unfit(error: BaseException, code: object, *, field: str, unbuilt: str, unfitting: str, path: str) -> OmniError:
    """The error of a plugin's function that builds something from config.json. Families check only the fields that they use.

    code, path: the function, and its import path. field, unbuilt: the problem if the function itself is wrong. unfitting: the
    problem if config.json may be wrong.
    """
    if not may_be_of_config(error):
        return plugin_error(field, f"{unbuilt}{fault_of(error, code)}", f"correct {path}")
    remedy = f"use the config.json that belongs to these weights; if it is right, correct {path}"
    return CheckpointError("config.json", f"{unfitting}: {fault_of(error, code)}", remedy)


def may_be_of_config(error: BaseException) -> bool:
    """Whether a value of config.json may be the cause: one that is missing, null, zero, or of another type."""
    match error:
        case ReturnedError() | UnknownPartError():
            return False
        case _ if raised_in(error, "omni.pipeline"):  # a field of an Edge, which config.json does not have
            return False
        case AttributeError(obj=None | bool() | int() | float() | str() | list()):
            return error.name is not None  # an error of Python, not one that a function raised
        case TypeError():
            return "abstract class" not in str(error) and _CALL.search(str(error)) is None
        case _:
            return isinstance(error, _FROM_VALUES)
