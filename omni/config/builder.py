"""Options while settings are applied to them."""

import re
from collections.abc import Mapping

import msgspec

from omni.config.layer import SettingsLayer
from omni.errors import ConfigError, OmniError, error_text, fault_of
from omni.utils.interrupts import is_interrupt


class OptionsBuilder:
    """A struct's fields, checked together after all of them are set, since one may bound another."""

    def __init__(self, path: str, options: msgspec.Struct) -> None:
        """path: the dotted path of the options."""
        self.path = path
        self.type = type(options)
        self._before = options
        self._changed: dict[str, object] = {}

    def put(self, name: str, value: object) -> None:
        self._changed[name] = value

    def inner(self, name: str) -> "OptionsBuilder | None":
        """The field of that name as a builder; None if it has no fields of its own."""
        value = self._changed[name] if name in self._changed else msgspec.structs.asdict(self._before)[name]
        if isinstance(value, msgspec.Struct):
            value = self._changed[name] = OptionsBuilder(f"{self.path}.{name}", value)
        return value if isinstance(value, OptionsBuilder) else None

    def build(self, origins: Mapping[str, SettingsLayer]) -> msgspec.Struct:
        """Returns the options. origins: the layer of each path. Raises ConfigError, naming the refused settings."""
        if not self._changed:
            return self._before
        fields = {
            n: value.build(origins) if isinstance(value, OptionsBuilder) else value
            for n, value in self._changed.items()
        }
        try:
            return msgspec.structs.replace(self._before, **fields)
        except OmniError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            refused = self._refused(error_text(error), list(origins))
            field = ", ".join(origins[path].name(path) for path in refused)
            if isinstance(error, ValueError | TypeError):
                remedy = "use a value in the range it names" if len(refused) == 1 else "use values that go together"
                raise ConfigError(field, str(error), remedy) from error
            # Options refuse values by OmniError, ValueError or TypeError; any other error may be a bug of their author.
            problem = f"{self.type.__name__} cannot be made with this value: {fault_of(error)}"
            remedy = f"use another value; if it is right, correct {self.type.__name__}.__post_init__"
            raise ConfigError(field, problem, remedy) from error

    def _refused(self, problem: str, paths: list[str]) -> list[str]:
        """The paths in this struct that the problem names; all paths in this struct if it names none."""
        own = [path for path in paths if path.startswith(f"{self.path}.")]
        return [path for path in own if re.search(rf"\b{re.escape(path.rpartition('.')[2])}\b", problem)] or own
