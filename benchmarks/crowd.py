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

A request that raises an error or gives no sound has failed. Column `failed` counts them, those of the row's warm-up included; all
other numbers are of the other streams. After the table, the script prints the first error and ends with status 1.

The facts below the table have the full garbage collections of this program after the start: it reads no chunk meanwhile; and at the
end of the run the objects that are excluded from collection.

Another system takes omni's place with `--speaker MODULE:FUNCTION`: `(arguments) -> AsyncContextManager[Speaker]`, where a
`Speaker` is called with a prompt and a seed, and gives the seconds of each chunk as it arrives. The module may be in the working
directory, which is last on Python's path. `--shape` and `--set` are omni's, and no device is needed.
"""

import argparse
import asyncio
import gc
import importlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from bench.arguments import at_least, need_cuda, output_file, positive_float, positive_int
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


@dataclass(frozen=True, slots=True)
class OtherSystem:
    """name: `MODULE:FUNCTION`."""

    name: str
    open: SpeakerFactory


@dataclass(frozen=True, slots=True)
class CrowdRow:
    """crowd: of the requests that succeeded; None without any. errors: of those that failed."""

    name: str
    crowd: Crowd | None
    errors: tuple[Exception, ...]

    @classmethod
    def of(cls, name: str, answers: Iterable[SoundStream | Exception], warm_up: Iterable[Exception] = ()) -> "CrowdRow":
        streams, errors = list[SoundStream](), list(warm_up)
        for answer in answers:
            if isinstance(answer, Exception):
                errors.append(answer)
            else:
                streams.append(answer)
        return cls(name, crowd_of(streams) if streams else None, tuple(errors))

    def as_json(self) -> dict[str, object]:
        numbers = dict.fromkeys(field.name for field in fields(Crowd)) | {"streams": 0}
        if self.crowd is not None:
            numbers = asdict(self.crowd)
        return {"at once": self.name, "failed": len(self.errors)} | numbers


@dataclass(frozen=True, slots=True)
class CrowdRun:
    """started: seconds of the start. collections: of each full garbage collection after it. frozen: objects excluded from them."""

    rows: list[CrowdRow]
    started: float
    collections: list[float]
    frozen: int


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


async def attempt(speak: Speaker, salt: int) -> SoundStream | Exception:
    """One request: its stream, or the error with which it failed."""
    try:
        return await listen(speak(prompt_of(salt), salt))
    except Exception as error:  # a system may raise anything; all other requests count nevertheless
        return error


async def closed_loop(speak: Speaker, listeners: int, turns: int, salt: int) -> list[SoundStream | Exception]:
    """This number of listeners at once, each with `turns` requests in a row."""

    async def listener(index: int) -> list[SoundStream | Exception]:
        return [await attempt(speak, one) for one in range(salt + index * turns, salt + (index + 1) * turns)]

    each = await asyncio.gather(*(listener(index) for index in range(listeners)))
    return [answer for answers in each for answer in answers]


async def arrivals(speak: Speaker, per_second: float, seconds: float, salt: int) -> list[SoundStream | Exception]:
    """Requests that arrive at random, by a seed: none if the first arrival is later than `seconds`."""
    gaps, begin, at = random.Random(salt), time.perf_counter(), 0.0
    answers: list[asyncio.Task[SoundStream | Exception]] = []
    while (at := at + gaps.expovariate(per_second)) < seconds:
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        answers.append(asyncio.create_task(attempt(speak, salt + len(answers))))
    return list(await asyncio.gather(*answers))


async def measure(arguments: argparse.Namespace, open_speaker: SpeakerFactory) -> CrowdRun:
    start, rows, salt = time.perf_counter(), list[CrowdRow](), 1_000_000
    async with open_speaker(arguments) as speak:
        started = time.perf_counter() - start
        with full_collections() as collections:
            for listeners in arguments.at_once:
                warm_up = await closed_loop(speak, listeners, 1, salt)
                salt += 1_000_000
                answers = await closed_loop(speak, listeners, arguments.turns, salt)
                failed = [answer for answer in warm_up if isinstance(answer, Exception)]
                rows.append(CrowdRow.of(str(listeners), answers, failed))
                salt += 1_000_000
            if arguments.arrivals is not None:
                answers = await arrivals(speak, arguments.arrivals, arguments.seconds, salt)
                rows.append(CrowdRow.of(f"{arguments.arrivals:g} a second", answers))
        frozen = gc.get_freeze_count()  # before the end, at which omni includes its objects again
    return CrowdRun(rows, started, collections, frozen)


_NUMBERS = ("speech s/s", "first audio p50 ms", "p95", "max", "RTF", "least slack s", "p5", "gaps", "chunks s")


def print_crowds(rows: Sequence[CrowdRow]) -> None:
    print_table(
        ("at once", "streams", "failed", *_NUMBERS),
        [(row.name, row.crowd.streams if row.crowd else 0, len(row.errors), *numbers_of(row.crowd)) for row in rows],
    )


def numbers_of(crowd: Crowd | None) -> tuple[object, ...]:
    """The cells of `_NUMBERS`."""
    if crowd is None:
        return ("-",) * len(_NUMBERS)
    first = (crowd.first_audio_p50, crowd.first_audio_p95, crowd.first_audio_max)
    return (
        f"{crowd.sound_per_second:.1f}",
        *(f"{1000 * each:.0f}" for each in first),
        f"{crowd.rtf:.3f}",
        *("" if each is None else f"{each:.2f}" for each in (crowd.least_slack, crowd.slack_p5)),
        crowd.gaps,
        " ".join(f"{each:.2f}" for each in crowd.chunks),
    )


def end_if_any_failed(rows: Sequence[CrowdRow]) -> None:
    """Ends the script with status 1 and one line."""
    errors = [error for row in rows for error in row.errors]
    if errors:
        first = " ".join(f"{type(errors[0]).__name__}: {errors[0]}".split())
        raise SystemExit(f"failed requests: {len(errors)}; the first: {first}")


def speaker_named(name: str) -> OtherSystem:
    """The type of an argument. Its module may be in the working directory, which is last on Python's path from then on."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    module, _, function = name.partition(":")
    try:
        return OtherSystem(name, getattr(importlib.import_module(module), function))
    except (ImportError, ValueError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{name!r} is no MODULE:FUNCTION: {error}") from None


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
    another = "MODULE:FUNCTION of another system; the module may be in the working directory"
    parser.add_argument("--speaker", type=speaker_named, help=another)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_settings(parser)
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args(given)
    speaker: OtherSystem | None = arguments.speaker
    if speaker is None and arguments.device == "cuda":
        need_cuda("--shape tiny-omni --device cpu runs on the CPU")
    with refusals_in_one_line():
        run = asyncio.run(measure(arguments, omni_speaker if speaker is None else speaker.open))
    print_crowds(run.rows)
    measured = {"shape": arguments.shape} if speaker is None else {"speaker": speaker.name}
    facts: dict[str, object] = {**environment(), **measured, "start-up s": f"{run.started:.1f}"}
    facts["full collections"] = len(run.collections)
    facts["longest ms"] = f"{1000 * max(run.collections, default=0.0):.0f}"
    facts["objects excluded from collection"] = run.frozen
    print_facts(facts)
    write_json(arguments.json, [row.as_json() for row in run.rows], facts)
    end_if_any_failed(run.rows)


if __name__ == "__main__":
    main()
