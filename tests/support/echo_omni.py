"""Models of the echo family behind the public interface."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from omni import AsyncOmni, Omni, SamplingParams
from tests.support.echo_family import echo_plugins, eventually
from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS

ENDLESS = SamplingParams(max_tokens=10**9)
_START = f"""
import os, sys, threading, time
sys.path[:0] = {SOURCE_ROOTS}
"""


def opened(model: Path, **overrides: object) -> Omni:
    return Omni(model, device="cpu", plugins=echo_plugins(), overrides=overrides)


def assert_nothing_held(omni: Omni, where: str = "") -> None:
    assert eventually(lambda: omni.idle), where
    assert eventually(lambda: not any(count for usage in omni.usage().values() for count in usage.values())), where


async def until_idle(omni: AsyncOmni) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not omni.idle:
            await asyncio.sleep(0.001)


def coroutine(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test of a coroutine whose first argument is a model. No request is under way after it."""

    async def main(model: Path, arguments: dict[str, Any]) -> None:
        async with AsyncOmni(model, device="cpu", plugins=echo_plugins()) as omni:
            await test(omni, **arguments)
            await until_idle(omni)

    def run(model: Path, **arguments: Any) -> None:
        asyncio.run(main(model, arguments))

    _, *others = inspect.signature(test).parameters.values()
    model, _ = inspect.signature(run).parameters.values()
    run.__signature__ = inspect.Signature([model, *others])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def run_program(code: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Runs Python code in a process of its own, with this repository's packages. flags: of the interpreter."""
    command = [sys.executable, *flags, "-c", _START + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
