"""Speech beside a busy program: the same requests with nothing else running, and beside threads of the user's own.

    python benchmarks/neighbour.py [--shape qwen3-omni-30b] [--process auto] [--concurrency 1 16] [--frames 250] [--json FILE]

Dummy weights of a released shape; `--tokens` of text, then `--frames` frames of speech, through `AsyncOmni` as a server would use
it. Neighbours are threads of the program: `python N` run pure Python for ever, `hash N` hash 1 MiB at a time, which releases the
interpreter lock. Per neighbour and concurrency, of the median round by real-time factor: RTF and first audio as the program sees
them, and silence, the longest time in which a listener who plays what has come would hear nothing. Last, the ratio of each RTF to
that of the quiet program.
"""

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.arguments import device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni import AsyncOmni, SamplingParams
from omni.config import parse_override
from shapes import SHAPES
from talk import TALKS, Speech

NEIGHBOURS = ("quiet", "python 1", "python 4", "hash 8")


@dataclass(frozen=True, slots=True)
class Heard:
    """One request. Seconds, from `generate`. last: of the last sample. speech: made."""

    first: float
    last: float
    speech: float
    silence: float


@dataclass(frozen=True, slots=True)
class Run:
    neighbour: str
    requests: int
    rtf: float
    first_audio_ms: float
    silence: float


@contextmanager
def beside(neighbour: str) -> Iterator[None]:
    """Runs the neighbour's threads."""
    stop = threading.Event()

    def python() -> None:
        count = 0
        while not stop.is_set():
            for number in range(10_000):
                count += number % 7

    def digest() -> None:
        data = bytes(2**20)
        while not stop.is_set():
            hashlib.sha256(data).digest()

    kind, _, number = neighbour.partition(" ")
    work = {"quiet": python, "python": python, "hash": digest}[kind]
    threads = [threading.Thread(target=work) for _ in range(int(number or 0))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def hear(omni: AsyncOmni, message: str, sampling: dict[str, SamplingParams]) -> Heard:
    start = time.perf_counter()
    first = last = speech = silence = 0.0
    async for output in omni.generate(message, modalities=("text", "audio"), sampling=sampling):
        if output.audio is None or not len(output.audio):
            continue
        assert output.sample_rate is not None
        last = time.perf_counter() - start
        first = first or last
        silence = max(silence, last - (first + speech))
        speech += len(output.audio) / output.sample_rate
    return Heard(first, last, speech, silence)


async def talk(omni: AsyncOmni, speech: Speech, requests: int, tokens: int, frames: int, salt: int) -> list[Heard]:
    sampling = {
        "thinker": SamplingParams(max_tokens=tokens, temperature=1.0, seed=salt, ignore_eos=True),
        "talker": SamplingParams(max_tokens=frames + speech.unspoken, seed=salt, ignore_eos=True),
    }
    chats = [f"Tell me about the number {1000 * salt + index}." for index in range(requests)]
    return list(await asyncio.gather(*(hear(omni, chat, sampling) for chat in chats)))


def summary(neighbour: str, heard: list[Heard]) -> Run:
    return Run(
        neighbour,
        len(heard),
        statistics.mean(one.last / one.speech for one in heard),
        1000 * statistics.mean(one.first for one in heard),
        max(one.silence for one in heard),
    )


async def measure(arguments: argparse.Namespace, folder: str, speech: Speech) -> tuple[list[Run], float]:
    overrides = {"engine.process": arguments.process} | dict(map(parse_override, arguments.set))
    start = time.perf_counter()
    runs = []
    async with AsyncOmni(folder, load_format="dummy", device=arguments.device, overrides=overrides) as omni:
        started = time.perf_counter() - start
        for requests in arguments.concurrency:
            await talk(omni, speech, requests, 4, round(speech.second), 1)
            for number, neighbour in enumerate(arguments.neighbours):
                with beside(neighbour):
                    made = [
                        summary(
                            neighbour,
                            await talk(
                                omni, speech, requests, arguments.tokens, arguments.frames, 2 + 10 * number + turn
                            ),
                        )
                        for turn in range(arguments.rounds)
                    ]
                runs.append(sorted(made, key=lambda one: one.rtf)[len(made) // 2])
    return runs, started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=TALKS, default="qwen3-omni-30b")
    parser.add_argument("--process", choices=("auto", "thread", "process"), default="auto")
    parser.add_argument("--tokens", type=positive_int, default=64)
    parser.add_argument("--frames", type=positive_int, default=250)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=[1, 16])
    parser.add_argument("--neighbours", nargs="+", choices=NEIGHBOURS, default=NEIGHBOURS)
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings, such as talker.place=cuda:1"
    )
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[arguments.shape](Path(folder))
        runs, started = asyncio.run(measure(arguments, folder, TALKS[arguments.shape]))
    quiet = {one.requests: one.rtf for one in runs if one.neighbour == "quiet"}
    header = ("at once", "neighbour", "RTF", "first audio ms", "silence s", "RTF over quiet")
    print_table(
        header,
        [
            (
                one.requests,
                one.neighbour,
                f"{one.rtf:.4f}",
                f"{one.first_audio_ms:.0f}",
                f"{one.silence:.2f}",
                f"{one.rtf / quiet[one.requests]:.2f}" if one.requests in quiet else "",
            )
            for one in runs
        ],
    )
    facts = environment() | {"shape": arguments.shape, "process": arguments.process, "start-up s": f"{started:.1f}"}
    print_facts(facts)
    write_json(arguments.json, [asdict(one) for one in runs], facts)


if __name__ == "__main__":
    main()
