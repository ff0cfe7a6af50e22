"""Settings of one source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """The settings of one source. Later layers override earlier ones.

    origin: the value of `Setting.origin`: a file's name, `"--set"`, `"overrides"`, `"argument"`.
    values: by dotted path. A table changes only the fields that it names. A string may stand for another type, for
        `--set`.
    file: whether the values come from a file's tables: then types are strict, and errors name the file.
    """

    origin: str
    values: Mapping[str, object]
    file: bool = False

    def name(self, path: str) -> str:
        """The name of the setting at `path` in errors."""
        return f"{self.origin}: {path}" if self.file else path

    def only(self, name: str) -> "SettingsLayer":
        """The settings below `name`."""
        return self._where([path for path in self.values if path.partition(".")[0] == name])

    def without(self, *names: str) -> "SettingsLayer":
        """The settings that are not below one of `names`."""
        return self._where([path for path in self.values if path.partition(".")[0] not in names])

    def spread(self, name: str) -> "SettingsLayer":
        """A table of `name` as settings below it: `{"edges": {"a-b": x}}` as `{"edges.a-b": x}`."""
        table = self.values.get(name)
        if not isinstance(table, Mapping):
            return self
        spread = {f"{name}.{key}": value for key, value in table.items()}
        return SettingsLayer(self.origin, {**{k: v for k, v in self.values.items() if k != name}, **spread}, self.file)

    def _where(self, paths: Sequence[str]) -> "SettingsLayer":
        return SettingsLayer(self.origin, {path: self.values[path] for path in paths}, self.file)


def parse_override(text: str, option: str = "--set", form: str = "stage.option=value") -> tuple[str, str]:
    """A text of the form as (path, value). option: of the command line, for errors. Raises ConfigError."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip() or ("." in form and "." not in path):
        raise ConfigError(option, f"{text!r} is not an override", f"write {form}")
    return path.strip(), value.strip()
