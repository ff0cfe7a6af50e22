"""Settings that would change the behaviour of a session, and are not supported here."""

from collections.abc import Mapping
from typing import Any

from omni.errors import InputError, quoted

Off = Mapping[str, tuple[object, ...]]
"""Values without effect, by field."""

SESSION: Off = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "prompt": (None,),
    "reasoning": (None,),
    "tracing": (None,),
    "include": (None, []),
}
INPUT: Off = {"noise_reduction": (None,)}
OUTPUT: Off = {"speed": (None, 1, 1.0)}


def without_unsupported(given: Mapping[str, Any], off: Off, at: str) -> dict[str, Any]:
    """Returns the other fields. Raises InputError for a field that requests an unsupported feature."""
    for name, values in off.items():
        value = given.get(name)
        if not any(type(value) is type(each) and value == each for each in values):
            raise InputError(f"{at}.{name}", f"{quoted(value)} is not supported", "leave it out")
    return {name: value for name, value in given.items() if name not in off}
