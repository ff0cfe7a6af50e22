"""`omni tiny`: a checkpoint that needs no download."""

import stat
from pathlib import Path
from typing import Protocol, cast

import typer

from omni.cli.interrupt import unwinding
from omni.errors import ConfigError, OmniError, fault_of, plugin_error
from omni.plugin import ModelFamily, locate
from omni.plugin.manager import Plugins, load_plugins
from omni.utils.files import filling

_DISTRIBUTION = "omni-stages"
_PROBE_BYTES = 4 * 2**20
"""Bytes: more than a tiny checkpoint's largest file."""


class _WriteTiny(Protocol):
    def __call__(self, directory: Path, *, seed: int) -> None: ...


def write(directory: Path, family: str | None, seed: int) -> None:
    """Has a family write its tiny checkpoint. Raises ConfigError if `directory` is not empty or cannot be written, or if the family
    has none, and PluginError for an unknown family. Leaves nothing behind then."""
    chosen, path = _choose(load_plugins(), family)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(str(directory), "exists already", "name a new or an empty folder")
        field = f"families.{chosen.name}.tiny"
        write_tiny = cast(_WriteTiny, locate(path, field))
        with unwinding(), filling(directory) as part:
            _write(write_tiny, field, part, seed)
            _open_to_readers(part)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    except OSError as error:
        remedy = "name a folder that can be written, on a disk with free space"
        raise ConfigError(str(directory), f"cannot be written ({error.strerror})", remedy) from error
    typer.echo(f"wrote a tiny {chosen.name} checkpoint to {directory} ({size / 1e6:.1f} MB)")


def _write(write_tiny: _WriteTiny, field: str, part: Path, seed: int) -> None:
    """Raises OSError for a full disk, which libraries report in different ways, and PluginError about `field` for other faults."""
    try:
        write_tiny(part, seed=seed)
    except OSError:
        raise
    except Exception as error:
        # Writing to the disk shows whether it was full.
        (part / "probe").write_bytes(bytes(_PROBE_BYTES))
        if isinstance(error, OmniError):
            raise
        raise plugin_error(field, fault_of(error, write_tiny), "correct it") from error


def _open_to_readers(part: Path) -> None:
    """Gives every file the mode of a new one: libraries write weights for their owner alone, and servers run as other users."""
    mode = stat.S_IMODE(part.stat().st_mode) & 0o666
    for file in part.rglob("*"):
        if file.is_file():
            file.chmod(mode)


def _choose(plugins: Plugins, name: str | None) -> tuple[ModelFamily, str]:
    if name is not None:
        family = plugins.families[name]
        if family.tiny is None:
            remedy = f"use {' or '.join(_tiny_names(plugins)) or 'a family that has one'}"
            raise ConfigError("--family", f"{name!r} has no tiny checkpoint", remedy)
        return family, family.tiny
    names = _tiny_names(plugins)
    if len(names) > 1:
        # The default is a family of omni itself, not of another distribution.
        shipped = {record.name for record in plugins.records if record.distribution == _DISTRIBUTION}
        names = [name for name in names if plugins.families.owners[name] in shipped] or names
    if len(names) != 1:
        problem = "must be given" if names else "no installed family has a tiny checkpoint"
        raise ConfigError("--family", problem, f"use {' or '.join(names)}" if names else "see `omni plugins`")
    return _choose(plugins, names[0])


def _tiny_names(plugins: Plugins) -> list[str]:
    return sorted(family.name for family in plugins.families.entries.values() if family.tiny is not None)
