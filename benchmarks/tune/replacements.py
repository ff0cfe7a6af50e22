"""The option `--replace` of scripts that time a model, or a part of one: entries of the tables that are replaced together."""

import argparse
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import torch
from changed_tables import converted, placed

from omni_ar.kernels import tuning
from omni_ar.kernels.attention.settings import DecodeSettings
from omni_ar.kernels.moe.settings import MoeSettings

_KINDS = {"attention_decode": DecodeSettings, "linear": None, "moe": MoeSettings}
_LINEAR_KEY = re.compile(r"(norm_)?(linear|gated)-N\d+-D\d+-b?float\d+")

Entry = tuple[str, str, int]
"""Operation, key of the shape, and rows."""
Entries = Mapping[Entry, tuning.Config]


def add_replace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replace",
        nargs="+",
        action="append",
        default=[],
        metavar=("OPERATION", "KEY SETTINGS"),
        help=f"gives an entry of the table of OPERATION ({', '.join(_KINDS)}) other SETTINGS, a JSON object: for a linear map {{}} "
        "is cuBLAS, or separate kernels. KEY is the entry for the rows that are timed, KEY@16 that for 16 rows. The entries of "
        "several --replace are replaced together. Of several SETTINGS each is tried, in all combinations with those of other keys",
    )


def read_replace(parser: argparse.ArgumentParser, given: Sequence[Sequence[str]], rows: int) -> list[Entries]:
    """What is tried, in order. given: values of the options. rows: that are timed. Ends the script for a wrong option."""
    tried: dict[Entry, list[tuning.Config]] = {}
    for values in given:
        operation, key, *settings = *values, *[""] * (2 - len(values))
        name, _, size = key.partition("@")
        if operation not in _KINDS or not settings or not (size or str(rows)).isdecimal():
            parser.error(
                f"--replace: {' '.join(values)!r} is not OPERATION KEY SETTINGS, with one of {', '.join(_KINDS)}"
            )
        try:
            checked = [_checked(operation, name, text) for text in settings]
        except ValueError as error:
            parser.error(f"--replace {operation} {key}: {error}")
        tried[operation, name, int(size or rows)] = checked
    return [dict(zip(tried, chosen, strict=True)) for chosen in itertools.product(*tried.values())] if tried else []


def _checked(operation: str, key: str, text: str) -> tuning.Config:
    """Raises ValueError for what the operation's launches do not take."""
    settings: tuning.Config = json.loads(text)
    if operation == "linear":
        if not _LINEAR_KEY.fullmatch(key):
            raise ValueError("no key of a linear map, such as linear-N1024-D2048-bfloat16")
        converted(settings)
    else:
        msgspec.convert(settings, _KINDS[operation])
    return settings


@contextmanager
def replaced(entries: Entries, device: torch.device) -> Iterator[None]:
    """While entered, the tables of `device` have these entries. Larger numbers of rows of a linear map keep theirs."""
    tables: dict[tuple[str, str], dict[int, tuning.Config]] = {}
    for (operation, key, rows), settings in entries.items():
        sizes = tables.get((operation, key)) or tuning.shipped(operation, device, key)
        if operation == "linear":
            tables[operation, key] = placed(sizes, rows, converted(settings))
        else:
            tables[operation, key] = {**sizes, rows: settings}
    try:
        for (operation, key), sizes in tables.items():
            tuning.replace(operation, key, sizes)
        yield
    finally:
        for operation, key in tables:
            tuning.replace(operation, key, None)


def shown(entries: Entries) -> str:
    named = (f"{operation} {key}@{rows} {json.dumps(settings)}" for (operation, key, rows), settings in entries.items())
    return "; ".join(named) or "the tables"
