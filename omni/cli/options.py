"""Options that several commands share, their values, and output to the terminal."""

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from omni.config import parse_override

Model = Annotated[str, typer.Argument(help="A checkpoint folder or a hub id.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file: a table for each stage, and [engine].")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="STAGE.KEY=VALUE", help="Override a setting, of a stage or of `engine`; repeatable."),
]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:N. (default: cuda if there is one)")
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        metavar="STAGE=DEVICE",
        help="Run a stage on another device (`talker=cuda:1`), on several as replicas (`talker=cuda:1,cuda:2`), or in "
        "a process of its own (`talker=cpu/2`); repeatable.",
    ),
]
DType = Annotated[
    str | None, typer.Option("--dtype", help="Of the weights. (default: float32 on the CPU, bfloat16 on CUDA)")
]
LoadFormat = Annotated[
    str | None, typer.Option("--load-format", help="auto, or dummy for random weights. (default: auto)")
]
Family = Annotated[
    str | None, typer.Option("--family", help="Model family, where several serve the model. (default: the only one)")
]
Extensions = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="NAME", help="Pipeline extension of a plugin (`omni plugins` lists them); repeatable."
    ),
]
Eager = Annotated[
    bool,
    typer.Option("--eager", help="Capture no graphs: starts sooner, runs slower. Like --set engine.graphs=false."),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The options of the command line for running a model."""

    config: Path | None = None
    settings: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    load_format: str | None = None
    family: str | None = None
    extensions: tuple[str, ...] = ()

    def with_graphs(self, *, eager: bool) -> "Choices":
        """The choices with `--eager`."""
        return replace(self, settings=(*self.settings, "engine.graphs=false")) if eager else self

    def overrides(self) -> dict[str, str]:
        """`--set` and `--place`, by path. Raises ConfigError."""
        places = (parse_override(text, "--place", "stage=device") for text in self.places)
        return dict(map(parse_override, self.settings)) | {f"{stage}.place": device for stage, device in places}

    def engine_ahead(self, model: str) -> AbstractContextManager[None]:
        """The model's engine imports torch and its stages' code while the command does. Raises ConfigError."""
        from omni.api.settings import layers_of
        from omni.process.early import engine_ahead

        layers = layers_of(config=self.config, overrides=self.overrides(), device=self.device)
        return engine_ahead(model, layers, self.family)


def _choices(
    *,
    config: Config = None,
    settings: Settings = None,
    device: DeviceName = None,
    places: Places = None,
    dtype: DType = None,
    load_format: LoadFormat = None,
    family: Family = None,
    extensions: Extensions = None,
) -> Choices:
    return Choices(
        config=config,
        settings=tuple(settings or ()),
        places=tuple(places or ()),
        device=device,
        dtype=dtype,
        load_format=load_format,
        family=family,
        extensions=tuple(extensions or ()),
    )


def with_choices(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Choices` in place of its parameter `choices`, which gets their values."""
    options = inspect.signature(_choices).parameters
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += options.values() if parameter.name == "choices" else [parameter]

    @wraps(command)
    def given(**arguments: object) -> None:
        chosen: dict[str, Any] = {name: arguments.pop(name) for name in options}
        command(**arguments, choices=_choices(**chosen))

    given.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    given.__annotations__ = {each.name: each.annotation for each in parameters}
    return given


_LINES = "┌┐└┘├┤┬┴┼│─▼"


def takes_lines() -> bool:
    """Whether standard output's encoding has the characters of drawings."""
    try:
        _LINES.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def echo(text: str) -> None:
    """Prints text, with escapes for characters that the encoding lacks."""
    encoding = sys.stdout.encoding or "ascii"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def echo_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
