"""The option `--set` of scripts that open a model with the user's settings."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from omni.config import parse_override
from omni.errors import ConfigError


def setting(text: str) -> str:
    """The type of an argument."""
    try:
        parse_override(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.problem}: {error.remedy}") from None
    return text


def add_settings(parser: argparse.ArgumentParser, description: str = "settings; none as shipped") -> None:
    """Adds `--set`, which takes one setting or several and may be repeated. A later value of a setting replaces an earlier one."""
    parser.add_argument(
        "--set", type=setting, nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=description
    )


def overrides_of(settings: Sequence[str]) -> dict[str, object]:
    """The `overrides` of a model."""
    return dict(map(parse_override, settings))


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """Ends the script without a traceback if omni refuses a setting. Entered around what opens the model."""
    try:
        yield
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
