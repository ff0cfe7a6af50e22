"""TOML files of settings."""

import os
import tomllib
from pathlib import Path

from omni.config.layer import SettingsLayer
from omni.errors import ConfigError


def read_config(file: str | os.PathLike[str]) -> SettingsLayer:
    """The settings in a TOML file: a table for each stage, and `[engine]`. Their origin is the file's name.

    Raises ConfigError for a file that cannot be read, is not TOML, or has values outside tables.
    """
    path = Path(file).expanduser()
    try:
        tables = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise ConfigError(str(file), problem, "name a TOML file of settings") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"is not UTF-8 ({error})", "save it as UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), f"is not valid TOML: {error}", "correct that line") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            remedy = "write it below the name of its stage, or below [engine]"
            raise ConfigError(f"{file}: {name}", "is outside of any table", remedy)
    return SettingsLayer(os.fspath(file), tables, file=True)
