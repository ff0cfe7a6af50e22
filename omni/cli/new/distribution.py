"""Writes distributions from the templates beside this module.

A template is a file whose text and path hold `$name`, `$package`, `$distribution` and `$prefix` (`string.Template`), and whose name
ends in `.tmpl`. They generate the folders of `examples/`: tests compare these, and run their tests.
"""

import re
from importlib import metadata
from importlib.util import find_spec
from os.path import lexists
from pathlib import Path
from shlex import quote
from string import Template

import typer

from omni.cli.interrupt import unwinding
from omni.cli.new.kind import Kind
from omni.errors import ConfigError, quoted
from omni.plugin.manager import Plugins, load_plugins
from omni.utils.files import filling, reason

_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".tmpl"
_FIELD = "NAME"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 40


def write(kind: Kind, name: str, into: Path) -> None:
    """Writes `into/omni-NAME` and prints the next steps. Raises ConfigError for a name that is wrong or taken, and for a folder
    that exists or cannot be written. Leaves nothing behind then."""
    _check(kind, name, load_plugins())
    folder = into / _distribution(name)
    if lexists(folder):
        raise ConfigError(str(folder), "exists already", "use another name, or give another folder with --into")
    texts = files(kind, name)
    try:
        with unwinding(), filling(folder) as part:
            for path, text in texts.items():
                (part / path).parent.mkdir(parents=True, exist_ok=True)
                (part / path).write_text(text, encoding="utf-8")
    except OSError as error:
        remedy = "give a folder that can be written with --into"
        raise ConfigError(str(folder), f"cannot be written ({reason(error)})", remedy) from error
    typer.echo(f"wrote {folder}; next:\n    cd {quote(str(folder))}\n    pip install -e '.[test]'\n    pytest")


def files(kind: Kind, name: str) -> dict[str, str]:
    """The files of a distribution: texts by path. name: a valid one."""
    words = {
        "name": name,
        "package": _package(name),
        "distribution": _distribution(name),
        "prefix": "".join(part.capitalize() for part in name.split("_")),
    }
    root = _TEMPLATES / kind
    texts: dict[str, str] = {}
    for template in sorted(root.rglob(f"*{_SUFFIX}")):
        path = Template(template.relative_to(root).as_posix()).substitute(words)
        texts[path.removesuffix(_SUFFIX)] = Template(template.read_text(encoding="utf-8")).substitute(words)
    return texts


def _package(name: str) -> str:
    return f"omni_{name}"


def _distribution(name: str) -> str:
    return _package(name).replace("_", "-")


def _check(kind: Kind, name: str, plugins: Plugins) -> None:
    """Raises ConfigError for a name that conflicts with an installed distribution."""
    if not _NAME.fullmatch(name):
        remedy = f"use lowercase letters, digits and single underscores, as in {_similar(name)}"
        raise ConfigError(_FIELD, f"{quoted(name)} is not a name of a plugin", remedy)
    if len(name) > _LONGEST:
        raise ConfigError(_FIELD, f"has {len(name)} letters", f"use at most {_LONGEST}")
    taken = _taken(kind, name, plugins)
    if taken is not None:
        raise ConfigError(_FIELD, taken, "use another name")


def _taken(kind: Kind, name: str, plugins: Plugins) -> str | None:
    """The owner of the name; None if it is free."""
    owners = {
        Kind.FAMILY: {"model family": plugins.families.owners, "model type": plugins.model_types},
        Kind.STAGE: {"stage kind": plugins.kinds.owners, "pipeline extension": plugins.extensions.owners},
        Kind.CONNECTOR: {"connector": plugins.connectors.owners},
        Kind.PROCESSOR: {"logits processor": plugins.processors.owners},
        Kind.DRAFTER: {"drafter": plugins.drafters.owners},
    }
    for what, by_name in owners[kind].items():
        if name in by_name:
            return f"{quoted(name)} is a {what} of {by_name[name]!r}"
    if _installed(_distribution(name)):
        return f"a distribution {_distribution(name)} is installed"
    return f"a module {_package(name)} is installed" if find_spec(_package(name)) is not None else None


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _similar(name: str) -> str:
    """A valid name like `name`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    similar = "_".join(words)[:_LONGEST].strip("_").lstrip("0123456789_")
    return similar or "my_plugin"
