"""`omni serve`: opens a model, and answers over HTTP until a signal comes."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
import typer

from omni.cli.interrupt import unwinding
from omni.cli.options import Choices
from omni.config import parse_override
from omni.errors import ConfigError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.serve.options import ServeOptions

_NEEDED = ("av", "prometheus_client", "python_multipart", "starlette", "uvicorn", "webrtcvad", "websockets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArguments:
    """The command line's arguments. limits: fields of `ServeOptions` that are given. bounds: further ones, as `NAME=VALUE`."""

    model: str
    choices: Choices
    limits: dict[str, object]
    bounds: tuple[str, ...] = ()
    media_domains: tuple[str, ...] = ()
    media_folder: Path | None = None
    timeline: Path | None = None


def check_extra() -> None:
    """Raises ConfigError without the packages that the server needs."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        problem = f"needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        raise ConfigError("omni serve", problem, "pip install 'omni-stages[serve]'")


def serve(arguments: ServeArguments) -> None:
    """Returns after a signal, once the requests under way are answered. Raises OmniError."""
    # Imported after `check_extra`: they need packages that may be missing.
    from omni.api import AsyncOmni
    from omni.serve.allocator import return_large_buffers
    from omni.serve.audio.voices import Voices
    from omni.serve.run import address_of, bound
    from omni.serve.run import serve as run

    options, policy = _options(arguments), media_policy(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listener = bound(options)
    return_large_buffers()
    with listener:
        typer.echo(f"loading {arguments.model}", err=True)
        choices = arguments.choices
        omni = AsyncOmni(
            arguments.model,
            device=choices.device,
            dtype=choices.dtype,
            load_format=choices.load_format,
            config=choices.config,
            overrides=policy | choices.overrides(),
            timeline=arguments.timeline,
            family=choices.family,
            extensions=choices.extensions,
            check_frontend=lambda frontend: Voices(frontend.voices, options.voices),
        )
        names, address = " or ".join(options.model_names), address_of(listener)
        with unwinding():
            run(omni, options, listener, lambda: typer.echo(f"serving {names} at {address} (Ctrl-C ends it)", err=True))
    typer.echo("all requests are over", err=True)


def media_policy(arguments: ServeArguments) -> dict[str, object]:
    """The strict one; `--set` overrides it. Raises ConfigError."""
    policy: dict[str, object] = {"frontend.media.strict": True}
    if arguments.media_domains:
        policy["frontend.media.allowed_domains"] = list(arguments.media_domains)
    if arguments.media_folder is not None:
        if not arguments.media_folder.is_dir():
            problem = f"{quoted(str(arguments.media_folder))} is not a folder"
            raise ConfigError("--media-folder", problem, "give the path of one that exists")
        policy["frontend.media.local_folder"] = str(arguments.media_folder.resolve())
    return policy


def voice_table(given: Sequence[str]) -> dict[str, str]:
    """Voices of the model by name, from `NAME=VOICE`. Raises ConfigError."""
    table: dict[str, str] = {}
    for each in given:
        name, equals, voice = each.partition("=")
        if not (name and equals and voice):
            raise ConfigError("--voice", f"{quoted(each)} is not NAME=VOICE", "give it as in --voice alloy=NAME")
        table[name] = voice
    return table


def bounds_of(given: Sequence[str], names: Collection[str]) -> dict[str, float]:
    """Numbers by name, from `NAME=VALUE`. names: those that are taken. Raises ConfigError."""
    found: dict[str, float] = {}
    for each in given:
        name, value = parse_override(each, "--limit", "NAME=VALUE")
        if name not in names:
            raise ConfigError("--limit", f"{quoted(name)} is not a limit", f"use one of {', '.join(names)}")
        try:
            found[name] = msgspec.convert(value, int | float, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"--limit {name}", f"{quoted(value)} is not a number", "write a number") from error
    return found


def _options(arguments: ServeArguments) -> "ServeOptions":
    from omni.serve.options import ServeOptions

    given = {name: value for name, value in arguments.limits.items() if value is not None}
    names = [name for name in ServeOptions.__struct_fields__ if name not in arguments.limits]
    given |= bounds_of(arguments.bounds, names)
    given.setdefault("model_names", [_name_of(arguments.model)])
    try:
        return msgspec.convert(given, ServeOptions)
    except msgspec.ValidationError as error:
        raise ConfigError("omni serve", str(error), "see omni serve --help") from error


def _name_of(model: str) -> str:
    """The model's name: a hub id as given, or the last part of a folder's path."""
    path = Path(model)
    return path.resolve().name if path.exists() else model
