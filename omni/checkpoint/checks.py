"""Checks of the values in a checkpoint's files."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from omni.errors import CheckpointError, quoted

RESTORE_FILE = "use the file that belongs to these weights"
"""Remedy for a value that contradicts the weights."""

RESTORE_CONFIG = "use the config.json that belongs to these weights"
"""Remedy for a value or a weight's shape that contradicts config.json."""

OTHER_MODEL = "the file may be right, but use another model"
"""Remedy for a valid value that omni does not support."""

MOST = 2**18
"""The largest width or number of parts: several times that of any published model."""

_MOST_RATE = 256
_MOST_SAMPLES = 2**16
"""Samples of a frame. Published models have at most 2,000."""


def require_index(field: str, value: object, size: int) -> None:
    """Raises CheckpointError, naming `field` (the file, and the field in it), unless `value` is an index from 0 to `size` - 1."""
    if type(value) is not int or not 0 <= value < size:
        raise CheckpointError(field, f"{quoted(value)} is out of range, 0 to {size - 1}", RESTORE_FILE)


class Section:
    """A part of config.json, and checks of its values. Each check raises CheckpointError, which names the first wrong
    field as it is in the file.

    values: as transformers fills them. path: the part's path, such as `"talker_config.text_config"`.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self.path = path

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise CheckpointError(self.field(name), "is missing", RESTORE_FILE)
        return self._values[name]

    def get(self, name: str) -> Any:
        """The value, or None if the file lacks an optional field that transformers does not fill."""
        return self._values.get(name)

    def part(self, name: str) -> "Section":
        values = self[name]
        self.require(isinstance(values, Mapping), name, f"is {quoted(values)}, not a table")
        return Section(values, f"{self.path}.{name}" if self.path else name)

    def require_equal(self, values: Mapping[str, object]) -> None:
        """Checks fields whose values follow from others."""
        for name, value in values.items():
            self.require(self[name] == value, name, f"is {quoted(self[name])}, not {value!r}")

    def require_counts(self, *names: str, least: int = 1, most: int = MOST) -> None:
        """Checks integers, or lists and tables of them."""
        for name in names:
            for place, value in _each(name, self[name]):
                whole = isinstance(value, int) and not isinstance(value, bool)
                self.require(whole, place, f"is {quoted(value)}, not a whole number")
                self.require(value >= least, place, f"is {quoted(value)}, below {least:,}")
                self.require(value <= most, place, f"is {quoted(value)}, above {most:,}")

    def require_numbers(self, *names: str, above: float = 0.0, most: float = 1e30) -> None:
        """Checks finite numbers, or lists and tables of them."""
        for name in names:
            for place, value in _each(name, self[name]):
                real = isinstance(value, int | float) and not isinstance(value, bool)
                self.require(real, place, f"is {quoted(value)}, not a number")
                problem = f"is {quoted(value)}, not above {above:g} and at most {most:g}"
                self.require(above < value <= most, place, problem)

    def require_flags(self, *names: str) -> None:
        for name in names:
            self.require(isinstance(self[name], bool), name, f"is {quoted(self[name])}, neither true nor false")

    def require_list(self, name: str, least: int = 1, most: int = 64, *, like: str | None = None) -> None:
        """Checks a list: at least `least` and at most `most` entries, and as many as the list `like`."""
        value = self[name]
        self.require(isinstance(value, list | tuple), name, f"is {quoted(value)}, not a list")
        count = len(value)
        self.require(least <= count <= most, name, f"has {count:,} entries, not {least:,} to {most:,}")
        if like is not None:
            expected = len(self[like])
            self.require(count == expected, name, f"has {count} entries beside {expected} of {like}")

    def require_supported(self, values: Mapping[str, object]) -> None:
        """Checks fields for which omni does not support every valid value."""
        for name, value in values.items():
            if self[name] != value:
                problem = f"is {quoted(self[name])}, not {value!r}, which alone is supported"
                raise CheckpointError(self.field(name), problem, OTHER_MODEL)

    def require_index(self, size: int, *names: str) -> None:
        """Checks ids of a vocabulary of `size`, or other numbers from 0 to `size` - 1."""
        for name in names:
            require_index(self.field(name), self[name], size)

    def require_indices(self, size: int, *names: str) -> None:
        """Checks lists and tables of such numbers."""
        for name in names:
            for place, value in _each(name, self[name]):
                require_index(self.field(place), value, size)

    def require_multiple(self, name: str, of: str) -> None:
        """Checks that the field is a multiple of the field `of`, which is at least 1."""
        self.require_counts(name, of)
        self.require(self[name] % self[of] == 0, name, f"is {self[name]}, no multiple of {of}, which is {self[of]}")

    def require(self, holds: bool, name: str, problem: str) -> None:
        """Any other check: raises the error about the field `name` unless `holds`."""
        if not holds:
            raise CheckpointError(self.field(name), problem, RESTORE_FILE)

    def field(self, *names: str) -> str:
        """The name in errors of this part, or of a field in it."""
        return "config.json: " + ".".join(name for name in (self.path, *names) if name)


def check_rates(config: Section, *names: str) -> None:
    """Raises CheckpointError for lists that are not rates, or whose product exceeds the samples per frame of any codec."""
    samples = 1
    for name in names:
        config.require_list(name, most=16)
        config.require_counts(name, most=_MOST_RATE)
        samples *= math.prod(config[name])
        problem = f"gives {samples:,} samples for a frame, above {_MOST_SAMPLES:,}"
        config.require(samples <= _MOST_SAMPLES, name, problem)


def _each(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    match value:
        case dict():
            return ((f"{name}.{key}", each) for key, each in value.items())
        case list() | tuple():
            return ((f"{name}[{index}]", each) for index, each in enumerate(value))
    return ((name, value),)
