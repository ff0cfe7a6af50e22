"""`omni serve` in a process of its own, and its speech as a client receives it."""

import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
import msgspec

from omni import SamplingParams

FORMATS = {"pcm16": 16 * 24_000, "mp3": 96_000}
"""Bits per second of speech at 24 kHz, by format."""
_START_SECONDS = 600
_END_SECONDS = 120


@contextmanager
def serving(folder: str, *options: str) -> Iterator[str]:
    """The server's address, once it answers. The server ends with the block, after it has written its files."""
    command = [sys.executable, "-c", "from omni.cli import main; main()", "serve", folder, "--port", "0", *options]
    with subprocess.Popen([*command, "--name", "model"], stderr=subprocess.PIPE, text=True) as process:
        try:
            url = _address(process)
            # A full pipe would stop the server, which writes a line for each request.
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    for _ in process.stderr:
        pass


def _address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r"serving \S+ at (http://\S+) ", line)
        if found:
            _wait(found[1])
            return found[1]
    raise RuntimeError("".join(lines))


def _wait(url: str) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


async def sounds(
    client: httpx.AsyncClient,
    message: str | Sequence[Mapping[str, object]],
    main: str,
    sampling: Mapping[str, SamplingParams],
    format: str = "pcm16",
) -> AsyncIterator[float]:
    """Seconds of each piece of speech, as it arrives. message: a text, or parts of a message. main: the stage whose parameters are
    the request's own. format: of `FORMATS`."""
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": message}],
        "modalities": ["text", "audio"],
        "audio": {"format": format},
        "stream": True,
        "sampling": {stage: _given(params) for stage, params in sampling.items() if stage != main},
        **_given(sampling[main]),
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield 8 * _bytes(json.loads(line[6:])) / FORMATS[format]


def _bytes(event: Mapping[str, Sequence[Mapping[str, Mapping[str, Mapping[str, str]]]]]) -> int:
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    data = (event["choices"][0]["delta"].get("audio") or {}).get("data", "")
    return len(base64.b64decode(data))


def _given(params: SamplingParams) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}
