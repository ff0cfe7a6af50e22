"""Triton's interpreter without the search that it repeats.

At each launch, and at each call of a device function, it looks at all members of triton.language for the few hundred that it
replaces: most of the time of a small kernel. Which they are does not change.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

_INTERPRETER = "triton.runtime.interpreter"


def remember_builtins() -> None:
    """From now on, the interpreter looks at a module's or a class's members once, and at none of them while all are replaced: in
    device functions. Without effect if it is not loaded."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    if interpreter is None:
        return
    is_builtin = interpreter.tl.core.is_builtin
    names: dict[Any, list[str]] = {}

    def getmembers(package: Any) -> list[tuple[str, Any]]:
        if package not in names:
            names[package] = [name for name, member in inspect.getmembers(package) if is_builtin(member)]
        found = names[package]
        if not found or not is_builtin(getattr(package, found[0])):
            return []
        return [(name, getattr(package, name)) for name in found]

    quick: Any = ModuleType("inspect")
    vars(quick).update(vars(inspect))
    quick.getmembers = getmembers
    interpreter.inspect = quick
