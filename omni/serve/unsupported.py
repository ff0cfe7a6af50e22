"""Fields of OpenAI's requests that have no effect here: most clients fill some of them in."""

from collections.abc import Mapping
from typing import Any

from omni.errors import InputError, quoted

IGNORED = frozenset(
    {
        *("user", "metadata", "service_tier", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
    }
)
"""Fields that never change an answer."""

OFF: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "prediction": (None,),
    "web_search_options": (None,),
    "moderation": (None,),
    "store": (None, False),
    "suffix": (None, ""),
    "echo": (None, False),
    "best_of": (None, 1),
}
"""Fields that would change an answer, each with the values without effect."""


def without_unsupported(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the other fields. Raises InputError for a field that requests an unsupported feature."""
    for name, off in OFF.items():
        value = body.get(name)
        # A number equals a bool.
        if name in body and not any(type(value) is type(each) and value == each for each in off):
            raise InputError(name, f"{quoted(value)} is not supported", "leave it out")
    return {name: value for name, value in body.items() if name not in IGNORED and name not in OFF}
