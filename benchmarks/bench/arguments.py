"""Checks of a script's arguments, at the start: before it builds a model or measures for minutes."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from omni.device import name_device
from omni.errors import ConfigError


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument: whole numbers from `least` on."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return whole_number


positive_int = at_least(1)


def positive_float(text: str) -> float:
    """The type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def probability(text: str) -> float:
    """The type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:  # nor is NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def output_file(text: str) -> Path:
    """The type of an argument: a file that can be written to. An existing file is not changed."""
    path = Path(text)
    there = path.exists()
    try:
        path.open("a").close()  # not by permissions: to root, all files seem writable
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written to: {error.strerror}") from None
    if not there:
        path.unlink()
    return path


def output_folder(text: str) -> Path:
    """The type of an argument: a folder in which files can be made. It is made, and those above it, if it is not there."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be a folder to write to: {error.strerror}") from None
    return path


def device_here(on_cpu: str) -> Callable[[str], str]:
    """The type of a `--device`, its default included: a device that is here. on_cpu: options with which the script does without."""

    def device(name: str) -> str:
        try:
            place = name_device(name)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if place.type == "cuda":
            need_cuda(f"{on_cpu} runs on the CPU", place.index)
        return name

    return device


def need_cuda(else_do: str = "benchmarks/README.md says which scripts run on the CPU", index: int = 0) -> None:
    """Ends the script with one line if there is no CUDA device `index`. Call it before anything is built."""
    count = torch.cuda.device_count()
    if index >= count:
        raise SystemExit(
            f"needs cuda:{index}, and torch {torch.__version__} finds {count} CUDA devices here: {else_do}"
        )
