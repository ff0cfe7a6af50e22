"""Speech for many listeners at once, and for random arrivals, measured as listeners experience it.

    python benchmarks/crowd.py [--shape qwen3-omni-30b] [--at-once 1 16 32 64] [--arrivals 12 --seconds 60] [--json FILE]

Dummy weights of a released shape; a prompt of 60 words, `--tokens` of text, then `--frames` frames of speech, through `AsyncOmni`
as shipped. In the closed loop, `--at-once` listeners each ask `--turns` times, again as soon as an answer has ended. Then requests
arrive at random (a Poisson process of `--arrivals` a second, for `--seconds`), whatever is still under way. Per row: seconds of
speech per second of all streams together, first audio, real-time factor, and slack: the seconds of sound ahead of a listener who
plays from the first chunk on, at the arrival of a chunk. A stream has a gap where its slack was negative. Last, the median seconds
of a stream's first, second, third and later chunks.

`--set engine.timeline=FILE` records a timeline: `omni timeline FILE` then reports in which order stages launched at which slack,
and the sizes of chunks. Recording costs time, so the numbers of such a run are not those as shipped.

After the start omni rests for `--rest` seconds, in which it makes the captures that its start has deferred. `--rest 0` measures
from the start on: the first answers then wait for captures.

The facts below the table have the full garbage collections of this program after the start: it reads no chunk meanwhile.

Another system takes omni's place with `--speaker MODULE:FUNCTION`: `(arguments) -> AsyncContextManager[Speaker]`, where a
`Speaker` is called with a prompt and a seed, and gives the seconds of each chunk as it arrives. `--shape` and `--set` are omni's.
"""

import argparse
import asyncio
import importlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from bench.arguments import at_least, device_here, output_file, positive_float, positive_int
from bench.garbage import full_collections
from bench.listening import Crowd, SoundStream, crowd_of, listen
from bench.report import environment, print_facts, print_table, write_json
from bench.settings import add_settings, overrides_of, refusals_in_one_line
from omni import AsyncOmni, SamplingParams
from shapes import SHAPES
from talk import TALKS

_WORDS = 60


class Speaker(Protocol):
    """A system with speech as output."""

    def __call__(self, prompt: str, seed: int) -> AsyncIterator[float]:
        """Answers with speech: the seconds of each chunk, as it arrives."""


SpeakerFactory = Callable[[argparse.Namespace], AbstractAsyncContextManager[Speaker]]


@asynccontextmanager
async def omni_speaker(arguments: argparse.Namespace) -> AsyncIterator[Speaker]:
    speech = TALKS[arguments.shape]
    overrides = overrides_of(arguments.set)
    with tempfile.TemporaryDirectory() as folder:
        SHAPES[arguments.shape](Path(folder))
        async with AsyncOmni(folder, load_format="dummy", overrides=overrides, device=arguments.device) as omni:
            await asyncio.sleep(arguments.rest)

            async def speak(prompt: str, seed: int) -> AsyncIterator[float]:
                sampling = {
                    "thinker": SamplingParams(max_tokens=arguments.tokens, temperature=1.0, seed=seed, ignore_eos=True),
                    "talker": SamplingParams(max_tokens=arguments.frames + speech.unspoken, seed=seed, ignore_eos=True),
                }
                async for output in omni.generate(prompt, modalities=("text", "audio"), sampling=sampling):
                    if output.audio is not None:
                        assert output.sample_rate is not None
                        yield len(output.audio) / output.sample_rate

            yield speak


def prompt_of(salt: int) -> str:
    """60 words, which no other salt shares from the first on: a prefix cache has none of them."""
    words = random.Random(salt)
    return f"{salt} " + " ".join(
        words.choice(("tell", "me", "about", "rivers", "and", "towns")) for _ in range(_WORDS - 1)
    )


async def closed_loop(speak: Speaker, listeners: int, turns: int, salt: int) -> list[SoundStream]:
    """This number of listeners at once, each with `turns` requests in a row."""

    async def listener(index: int) -> list[SoundStream]:
        salts = range(salt + index * turns, salt + (index + 1) * turns)
        return [await listen(speak(prompt_of(one), one)) for one in salts]

    each = await asyncio.gather(*(listener(index) for index in range(listeners)))
    return [stream for streams in each for stream in streams]


async def arrivals(speak: Speaker, per_second: float, seconds: float, salt: int) -> list[SoundStream]:
    """Requests that arrive at random, by a seed."""
    gaps, begin, at = random.Random(salt), time.perf_counter(), 0.0
    streams: list[asyncio.Task[SoundStream]] = []
    while (at := at + gaps.expovariate(per_second)) < seconds:
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        streams.append(asyncio.create_task(listen(speak(prompt_of(salt + len(streams)), salt + len(streams)))))
    return list(await asyncio.gather(*streams))


async def measure(
    arguments: argparse.Namespace, open_speaker: SpeakerFactory
) -> tuple[dict[str, Crowd], float, list[float]]:
    """By the name of a row; the seconds of the start; and those of each full garbage collection after it."""
    start, found, salt = time.perf_counter(), dict[str, Crowd](), 1_000_000
    async with open_speaker(arguments) as speak:
        started = time.perf_counter() - start
        with full_collections() as collections:
            for listeners in arguments.at_once:
                await closed_loop(speak, listeners, 1, salt)  # warms up
                salt += 1_000_000
                found[str(listeners)] = crowd_of(await closed_loop(speak, listeners, arguments.turns, salt))
                salt += 1_000_000
            if arguments.arrivals is not None:
                streams = await arrivals(speak, arguments.arrivals, arguments.seconds, salt)
                found[f"{arguments.arrivals:g} a second"] = crowd_of(streams)
    return found, started, collections


def print_crowds(crowds: dict[str, Crowd]) -> None:
    print_table(
        (
            "at once",
            "streams",
            "speech s/s",
            "first audio p50 ms",
            "p95",
            "max",
            "RTF",
            "least slack s",
            "p5",
            "gaps",
            "chunks s",
        ),
        [
            (
                name,
                one.streams,
                f"{one.sound_per_second:.1f}",
                *(f"{1000 * each:.0f}" for each in (one.first_audio_p50, one.first_audio_p95, one.first_audio_max)),
                f"{one.rtf:.3f}",
                *("" if each is None else f"{each:.2f}" for each in (one.least_slack, one.slack_p5)),
                one.gaps,
                " ".join(f"{each:.2f}" for each in one.chunks),
            )
            for name, one in crowds.items()
        ],
    )


def speaker_named(name: str) -> SpeakerFactory:
    """The type of an argument."""
    module, _, function = name.partition(":")
    try:
        found: SpeakerFactory = getattr(importlib.import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{name!r} is no MODULE:FUNCTION: {error}") from None
    return found


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=TALKS, default="qwen3-omni-30b")
    parser.add_argument("--tokens", type=positive_int, default=64)
    parser.add_argument("--frames", type=positive_int, default=250)
    parser.add_argument("--at-once", type=positive_int, nargs="*", default=[1, 16, 32, 64])
    parser.add_argument("--turns", type=positive_int, default=3)
    parser.add_argument("--arrivals", type=positive_float, help="requests a second that arrive at random")
    parser.add_argument("--seconds", type=positive_float, default=60.0, help="of arrivals")
    parser.add_argument("--rest", type=at_least(0), default=10, help="seconds after the start")
    parser.add_argument("--speaker", type=speaker_named, default=omni_speaker, help="MODULE:FUNCTION of another system")
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    add_settings(parser)
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args(given)
    with refusals_in_one_line():
        crowds, started, collections = asyncio.run(measure(arguments, arguments.speaker))
    print_crowds(crowds)
    facts = environment() | {"shape": arguments.shape, "start-up s": f"{started:.1f}"}
    facts |= {"full collections": len(collections), "longest ms": f"{1000 * max(collections, default=0.0):.0f}"}
    print_facts(facts)
    write_json(arguments.json, [{"at once": name} | asdict(one) for name, one in crowds.items()], facts)


if __name__ == "__main__":
    main()
