"""Speech beside a busy program: the same requests in a quiet program, and beside threads of the user's own.

    python benchmarks/neighbour.py [--shape qwen3-omni-30b] [--process auto] [--concurrency 1 16] [--frames 250] [--json FILE]

Dummy weights of a released shape; `--tokens` of text, then `--frames` frames of speech, through `AsyncOmni` as a server would use
it. Neighbours are threads of the program: `python N` run pure Python for ever, `hash N` hash 1 MiB at a time, which releases the
interpreter lock. `pictures N` are N requests with a photograph each, 1024 x 768 as JPEG, that omni's own front end prepares at the
same time, again and again, in as many threads as it has; they do not go on to the engine, whose device would then have more to do.
Per neighbour and concurrency, of the median round by real-time factor: RTF and first audio as the program measures them, and
silence, the longest gap of a listener who plays each chunk at its arrival. Last, the ratio of each RTF to that of the quiet
program.

With `--serve`, the same requests then go over HTTP to `omni serve` in a process of its own, and RTF, first audio and silence are as
the client measures them: HTTP, JSON and base64 are the neighbour, called `http`, and with an encoder `http mp3`. Compare both with
`quiet`. In `http media` each request also has such a photograph and two seconds of sound, which the server downloads from another
process on the host, from no other address; in `http data` the same bytes are within the request. Both prepare and encode more than
`quiet` does, and have longer prompts: compare them with `media`, the requests of `http data` through `AsyncOmni`, without HTTP.

With `--timeline FILE`, which cuts graphs at phases and costs time, also the time from one decode step to the next on the device, of
thinker and talker, in all rounds: neighbours delay no token where it is that of `quiet`. Compare real-time factors of runs without
it. The server's trace is beside FILE, with `-serve` in its name.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import httpx
from msgspec import structs

from bench.arguments import device_here, output_file, positive_int
from bench.media_host import hosting
from bench.neighbours import Neighbours
from bench.report import environment, print_facts, print_table, write_json
from bench.request_media import RequestMedia
from bench.served import serving, sounds
from bench.settings import add_settings, overrides_of, refusals_in_one_line
from omni import AsyncOmni, SamplingParams
from omni.checkpoint import Checkpoint
from omni.frontend.build import build_frontend
from omni.timeline.read import read_trace
from omni.timeline.report import Spread, decoding_of
from omni.timeline.trace import Interval, Trace
from shapes import SHAPES
from talk import TALKS, FamilySpeech

NEIGHBOURS = ("quiet", "python 1", "python 4", "hash 8", "pictures 64")
_STAGES = ("thinker", "talker")
_SERVED = {"http": "pcm16", "http mp3": "mp3", "http data": "pcm16", "http media": "pcm16"}
"""Formats by neighbour, of requests to a server."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One request. Seconds, from `generate`. last: of the last sample. speech: made."""

    first: float
    last: float
    speech: float
    silence: float


@dataclass(frozen=True, slots=True)
class NeighbourRun:
    """Numbers of the median round. prepared: pictures per second of the neighbour, in all rounds. fetched: files that the server
    downloaded, in all rounds. span: of all rounds, by the host's monotonic clock, in nanoseconds. steps: the periods of decode
    steps by stage, with a timeline."""

    neighbour: str
    requests: int
    rtf: float
    first_audio_ms: float
    silence: float
    prepared: float = 0.0
    fetched: int = 0
    span: Interval | None = None
    steps: dict[str, Spread] = field(default_factory=dict)


Speak = Callable[[str, dict[str, SamplingParams]], AsyncIterator[float]]
"""Answers a message: seconds of each piece of speech, as it arrives."""


async def hear(sounds: AsyncIterator[float]) -> Heard:
    start = time.perf_counter()
    first = last = speech = silence = 0.0
    async for sound in sounds:
        if not sound:
            continue
        last = time.perf_counter() - start
        first = first or last
        silence = max(silence, last - (first + speech))
        speech += sound
    return Heard(first, last, speech, silence)


def speaker(omni: AsyncOmni, media: RequestMedia, neighbour: str) -> Speak:
    async def speak(message: str, sampling: dict[str, SamplingParams]) -> AsyncIterator[float]:
        messages = [{"role": "user", "content": media.content(neighbour, message)}]
        async for output in omni.generate(messages, modalities=("text", "audio"), sampling=sampling):
            if output.audio is not None and output.sample_rate is not None:
                yield len(output.audio) / output.sample_rate

    return speak


async def talk(speak: Speak, speech: FamilySpeech, requests: int, tokens: int, frames: int, salt: int) -> list[Heard]:
    sampling = {
        "thinker": SamplingParams(max_tokens=tokens, temperature=1.0, seed=salt, ignore_eos=True),
        "talker": SamplingParams(max_tokens=frames + speech.unspoken, seed=salt, ignore_eos=True),
    }
    chats = [f"Tell me about the number {1000 * salt + index}." for index in range(requests)]
    return list(await asyncio.gather(*(hear(speak(chat, sampling)) for chat in chats)))


def summary(neighbour: str, heard: list[Heard]) -> NeighbourRun:
    return NeighbourRun(
        neighbour,
        len(heard),
        statistics.mean(one.last / one.speech for one in heard),
        1000 * statistics.mean(one.first for one in heard),
        max(one.silence for one in heard),
    )


async def measure(arguments: argparse.Namespace, folder: str, speech: FamilySpeech) -> tuple[list[NeighbourRun], float]:
    overrides = {"engine.process": arguments.process} | overrides_of(arguments.set)
    given = {"device": arguments.device, "timeline": arguments.timeline}
    start = time.perf_counter()
    runs = []
    async with AsyncOmni(folder, load_format="dummy", overrides=overrides, **given) as omni:
        started = time.perf_counter() - start
        neighbours = Neighbours(build_frontend(omni.pipeline, Checkpoint(folder)))
        media = RequestMedia(RequestMedia.made() if arguments.serve else {})
        for requests in arguments.concurrency:
            rows = list(enumerate(arguments.neighbours))
            if arguments.serve:
                # Of the same texts as the server's requests.
                rows.append((0, "media"))
            await talk(speaker(omni, media, rows[0][1]), speech, requests, 4, round(speech.second), 1)
            for number, neighbour in rows:
                made = []
                speak = speaker(omni, media, neighbour)
                if neighbour == "media":
                    await talk(speak, speech, requests, 4, round(speech.second), 1)
                with neighbours.beside(neighbour):
                    began = time.perf_counter_ns()
                    for turn in range(arguments.rounds):
                        salt = 2 + 10 * number + turn
                        heard = await talk(speak, speech, requests, arguments.tokens, arguments.frames, salt)
                        made.append(summary(neighbour, heard))
                    span = Interval(began, time.perf_counter_ns())
                median = sorted(made, key=lambda one: one.rtf)[len(made) // 2]
                runs.append(replace(median, prepared=neighbours.prepared / span.length * 1e9, span=span))
    return runs, started


async def measure_server(arguments: argparse.Namespace, folder: str, speech: FamilySpeech) -> list[NeighbourRun]:
    """The requests of the quiet program, to a server."""
    settings = [f"engine.process={arguments.process}", *arguments.set]
    settings += ["frontend.media.private_addresses=true"]
    options = ["--device", arguments.device, "--load-format", "dummy", *(f"--set={setting}" for setting in settings)]
    if arguments.timeline is not None:
        options += ["--timeline", str(served_trace(arguments.timeline))]
    runs = []
    files = RequestMedia.made()
    with hosting(files) as host, serving(folder, *options, "--media-domain", "127.0.0.1") as url:
        media = RequestMedia(files, host)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:

            def speaking(neighbour: str, format: str) -> Speak:
                return lambda message, sampling: sounds(
                    client, media.content(neighbour, message), "thinker", sampling, format
                )

            for requests in arguments.concurrency:
                for neighbour, format in _SERVED.items():
                    speak = speaking(neighbour, format)
                    await talk(speak, speech, requests, 4, round(speech.second), 1)
                    made, before, began = [], host.requests(), time.perf_counter_ns()
                    for turn in range(arguments.rounds):
                        heard = await talk(speak, speech, requests, arguments.tokens, arguments.frames, 2 + turn)
                        made.append(summary(neighbour, heard))
                    median = sorted(made, key=lambda one: one.rtf)[len(made) // 2]
                    span = Interval(began, time.perf_counter_ns())
                    runs.append(replace(median, fetched=host.requests() - before, span=span))
    return runs


def served_trace(timeline: Path) -> Path:
    """The server's, beside that of the program."""
    return timeline.with_stem(f"{timeline.stem}-serve")


def with_steps(runs: Sequence[NeighbourRun], timeline: Path) -> list[NeighbourRun]:
    trace = read_trace(timeline)
    return [replace(one, steps=steps_within(trace, one.span)) for one in runs]


def steps_within(trace: Trace, span: Interval | None) -> dict[str, Spread]:
    """Times between consecutive decode steps that ran in `span`, in microseconds, by stage."""
    assert span is not None
    window = Interval(span.start - trace.started, span.end - trace.started)
    phases = tuple(one for one in trace.phases if one.ran.overlaps(window))
    host = tuple(one for one in trace.host if one.took.overlaps(window))
    part = replace(trace, phases=phases, host=host)
    found = {stage: decoding_of(part, stage) for stage in _STAGES}
    return {stage: one.period for stage, one in found.items() if one is not None and one.period is not None}


def print_runs(runs: Sequence[NeighbourRun]) -> None:
    quiet = {one.requests: one for one in runs if one.neighbour == "quiet"}
    header = ("at once", "neighbour", "RTF", "first audio ms", "silence s", "RTF over quiet", "pictures/s")
    print_table(
        header,
        [
            (
                one.requests,
                one.neighbour,
                f"{one.rtf:.4f}",
                f"{one.first_audio_ms:.0f}",
                f"{one.silence:.2f}",
                f"{one.rtf / quiet[one.requests].rtf:.2f}" if one.requests in quiet else "",
                f"{one.prepared:.0f}" if one.prepared else "",
            )
            for one in runs
        ],
    )
    if any(one.steps for one in runs):
        header = ("at once", "neighbour", "stage", "step p50 us", "p99 us", "p50 over quiet", "p99 over quiet")
        print_table(
            header,
            [
                (one.requests, one.neighbour, stage, *spread_columns(spread, quiet.get(one.requests), stage))
                for one in runs
                for stage, spread in one.steps.items()
            ],
        )


def spread_columns(spread: Spread, quiet: NeighbourRun | None, stage: str) -> Sequence[str]:
    values = (f"{spread.p50:.0f}", f"{spread.p99:.0f}")
    if quiet is None or stage not in quiet.steps:
        return (*values, "", "")
    other = quiet.steps[stage]
    return (*values, f"{spread.p50 / other.p50:.2f}", f"{spread.p99 / other.p99:.2f}")


def as_json(run: NeighbourRun) -> dict[str, object]:
    steps = {stage: structs.asdict(spread) for stage, spread in run.steps.items()}
    return asdict(replace(run, steps={})) | {"steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=TALKS, default="qwen3-omni-30b")
    parser.add_argument("--process", choices=("auto", "thread", "process"), default="auto")
    parser.add_argument("--tokens", type=positive_int, default=64)
    parser.add_argument("--frames", type=positive_int, default=250)
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=[1, 16])
    parser.add_argument("--neighbours", nargs="+", choices=NEIGHBOURS, default=NEIGHBOURS)
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--timeline", type=output_file, help="record all of it here, for the times of steps")
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    add_settings(parser, "settings, such as talker.place=cuda:1")
    parser.add_argument("--serve", action="store_true", help="send the requests to `omni serve` too")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, refusals_in_one_line():
        SHAPES[arguments.shape](Path(folder))
        runs, started = asyncio.run(measure(arguments, folder, TALKS[arguments.shape]))
        served = asyncio.run(measure_server(arguments, folder, TALKS[arguments.shape])) if arguments.serve else []
    if arguments.timeline is not None:
        runs = with_steps(runs, arguments.timeline)
        served = with_steps(served, served_trace(arguments.timeline)) if served else []
    runs = [*runs, *served]
    print_runs(runs)
    facts = environment() | {"shape": arguments.shape, "process": arguments.process, "start-up s": f"{started:.1f}"}
    print_facts(facts)
    write_json(arguments.json, [as_json(one) for one in runs], facts)


if __name__ == "__main__":
    main()
