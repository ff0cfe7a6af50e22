"""Structs with keyword arguments from users: the error for an unknown name suggests the nearest field."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from msgspec import StructMeta

from omni.errors import InputError, shortened


class NamedFields(StructMeta):
    """The metaclass of such structs. msgspec's own error for an unknown name is a TypeError without a suggestion."""

    # Type checkers use msgspec's own signature.
    if not TYPE_CHECKING:

        def __call__(cls, *values: Any, **fields: Any) -> Any:
            """Raises InputError for unknown names and positional values."""
            known = cls.__struct_fields__
            if values:
                problem = f"gets {len(values)} values without names"
                raise InputError(cls.__name__, problem, f"name fields, such as {cls.__name__}({known[0]}=...)")
            for name in fields:
                if name not in known:
                    near = get_close_matches(name, known, 1)
                    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
                    raise InputError(f"{cls.__name__}.{shortened(name)}", "is no field", remedy)
            return super().__call__(**fields)
