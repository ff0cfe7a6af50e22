"""End to end: text in, text and speech out, of a released model's shape with dummy weights, as users run it.

    python benchmarks/talk.py [--shape qwen3-omni-30b] [--tokens 64] [--frames N] [--concurrency 1 4 16] [--eager] [--json FILE]

Weights are random, so lengths are fixed by limits: the thinker samples `tokens` tokens, the talker samples `frames` frames, 20
seconds of them by default. A frame is the result of one step of the talker: of Qwen3-Omni 80 ms of speech, in all code groups, of
Qwen2.5-Omni 20 ms, in one code. So milliseconds per frame compare runs of one family, and the real-time factor compares families.

Requests of a round start together; a short round goes before. Per concurrency, means over its requests: time to first token, to the
first audio, real-time factor (time to the last sample over seconds of speech), milliseconds per frame from the first audio to the
last, and tokens per second of each stage; and seconds of speech made per second, all together. Of `--rounds` rounds the median by
real-time factor is printed; `bench/targets.py` has the origin of its `must` and `aim`. With `--timeline FILE`, a timeline of it
all, which cuts graphs at phases and costs time: not for numbers. `--set talker.place=cuda:1`: settings, as of `omni run`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.arguments import device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from bench.settings import add_settings, overrides_of, refusals_in_one_line
from bench.targets import RTF, Goal, bounds, verdict
from omni import Omni, Result, SamplingParams
from shapes import SHAPES


@dataclass(frozen=True, slots=True)
class FamilySpeech:
    """The speech of a family. second: frames of a second. unspoken: tokens without a frame, of a talker that a limit ends."""

    second: float
    unspoken: int


GROUPS, CODES = FamilySpeech(second=12.5, unspoken=1), FamilySpeech(second=50, unspoken=0)
TALKS: Mapping[str, FamilySpeech] = {
    "qwen3-omni-30b": GROUPS,
    "tiny-omni": GROUPS,
    "qwen2.5-omni-3b": CODES,
    "qwen2.5-omni-7b": CODES,
    "tiny-qwen2.5-omni": CODES,
}
"""Families by shape. The tiny ones show that it runs."""
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class TalkRound:
    """Seconds, but for ms_per_frame. speech: seconds of it per second, of all requests. rates: tokens per second by stage."""

    requests: int
    ttft: float
    first_audio: float
    rtf: float
    ms_per_frame: float
    speech: float
    total: float
    rates: dict[str, float]


def ask(omni: Omni, speech: FamilySpeech, requests: int, tokens: int, frames: int, salt: int) -> TalkRound:
    """One round of so many requests at once. salt: makes their prompts new."""
    codes = frames + speech.unspoken
    sampling = {
        "thinker": SamplingParams(max_tokens=tokens, temperature=1.0, seed=salt, ignore_eos=True),
        "talker": SamplingParams(max_tokens=codes, seed=salt, ignore_eos=True),
    }
    chats = [f"Tell me about the number {1000 * salt + index}." for index in range(requests)]
    start = time.perf_counter()
    results = omni.generate(chats, modalities=("text", "audio"), sampling=sampling, stream=False)
    seconds = time.perf_counter() - start
    assert isinstance(results, list)
    for result in results:
        if result.error is not None:
            raise result.error
        if result.usage.tokens != {"thinker": tokens, "talker": codes}:
            raise SystemExit(f"a request ended after {result.usage.tokens}: ask for fewer --tokens or --frames")
    return _summary(results, frames, seconds)


def _summary(results: list[Result], frames: int, seconds: float) -> TalkRound:
    metrics = [result.metrics for result in results]
    rates: dict[str, list[float]] = {}
    for one in metrics:
        for stage, timed in one.stages.items():
            if timed.tokens_per_second is not None:
                rates.setdefault(stage, []).append(timed.tokens_per_second)
    first_audio = [one.first_audio for one in metrics if one.first_audio is not None]
    last_audio = [one.rtf * one.audio_seconds for one in metrics if one.rtf is not None]
    return TalkRound(
        requests=len(results),
        ttft=statistics.mean(one.ttft for one in metrics if one.ttft is not None),
        first_audio=statistics.mean(first_audio),
        rtf=statistics.mean(one.rtf for one in metrics if one.rtf is not None),
        ms_per_frame=1000 * (statistics.mean(last_audio) - statistics.mean(first_audio)) / frames,
        speech=sum(one.audio_seconds for one in metrics) / seconds,
        total=seconds,
        rates={stage: statistics.mean(values) for stage, values in rates.items()},
    )


def median_round(rounds: list[TalkRound]) -> TalkRound:
    return sorted(rounds, key=lambda one: one.rtf)[len(rounds) // 2]


def print_rounds(rounds: list[TalkRound], target: Goal | None) -> None:
    header = (
        "at once",
        "TTFT s",
        "first audio s",
        "RTF",
        "ms per frame",
        "speech s/s",
        "thinker tok/s",
        "talker tok/s",
    )
    print_table(
        header,
        [
            (
                one.requests,
                f"{one.ttft:.3f}",
                f"{one.first_audio:.3f}",
                f"{one.rtf:.3f}",
                f"{one.ms_per_frame:.2f}",
                f"{one.speech:.1f}",
                *(f"{one.rates.get(stage, 0.0):.0f}" for stage in ("thinker", "talker")),
            )
            for one in rounds
        ],
    )
    for one in rounds:
        if one.requests == 1 and target is not None:
            print(f"RTF of one request: {one.rtf:.3f}, must / aim {bounds(target)}: {verdict(one.rtf, target)}")


def bytes_in_use() -> int:
    """Memory of the device in use by all processes: the engine has one of its own."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=TALKS, default="qwen3-omni-30b")
    parser.add_argument("--tokens", type=positive_int, default=64)
    parser.add_argument("--frames", type=positive_int, help=f"{_SECONDS} seconds of them if not given")
    parser.add_argument("--concurrency", type=positive_int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--timeline", type=output_file, help="record all of it here")
    add_settings(parser)
    parser.add_argument(
        "--device", type=device_here("--shape tiny-omni --device cpu"), choices=("cuda", "cpu"), default="cuda"
    )
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    given = {"device": arguments.device, "timeline": arguments.timeline}
    overrides = overrides_of(arguments.set) | ({"engine.graphs": False} if arguments.eager else {})
    speech = TALKS[arguments.shape]
    frames = round(_SECONDS * speech.second) if arguments.frames is None else arguments.frames
    rounds = []
    with tempfile.TemporaryDirectory() as folder, refusals_in_one_line():
        SHAPES[arguments.shape](Path(folder))
        start = time.perf_counter()
        with Omni(folder, load_format="dummy", overrides=overrides, **given) as omni:
            started = time.perf_counter() - start
            for requests in arguments.concurrency:
                ask(omni, speech, requests, 4, round(speech.second), salt=1)
                made = [
                    ask(omni, speech, requests, arguments.tokens, frames, 2 + turn) for turn in range(arguments.rounds)
                ]
                rounds.append(median_round(made))
            memory = bytes_in_use() / 2**30 if arguments.device == "cuda" else 0.0
    print_rounds(rounds, RTF.get(arguments.shape))
    print(f"a frame is {1000 / speech.second:.0f} ms of speech")
    print(f"start-up {started:.1f} s; {memory:.1f} GiB on the device")
    facts = environment() | {"shape": arguments.shape, "start-up s": f"{started:.1f}"}
    print_facts(facts)
    write_json(arguments.json, [asdict(one) for one in rounds], facts)


if __name__ == "__main__":
    main()
