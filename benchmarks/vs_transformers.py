"""The same requests by transformers, one by one, and by omni, many at once: throughput and latency of both.

    python benchmarks/vs_transformers.py [--models tiny large] [--concurrency 1 4 16] [--threads 1] [--json FILE]

Requests: text, a picture, a sound, a longer text, in turn; greedy; text and speech out, three codec frames for each text token;
no two share content, so that no cache helps. Both sides read the same checkpoint, in float32, on the same number of torch
threads, and are warmed up. transformers runs `generate` with its own KV cache at batch 1, the model loaded once. omni gets
as many clients as the concurrency, each of which asks again once it is answered, and a new engine for each concurrency,
so that no state is left from the one before. omni's front end has threads of its own beside torch's;
`--cores 1` holds the whole process, both sides, to one core.

Answers are compared: text and waveform (so every code of every group) of each request that both sides ran, at each concurrency.

transformers returns an answer whole: its first audio arrives with its last. Its latency at concurrency c is that of a queue
of c clients, computed from its times. `frames/cpu s` counts processor time, which other programs disturb less. Models:
`tiny`, as of `omni tiny`; `large`, hundred_million.py's. Exits with 1 if the throughput at the highest concurrency on `large` is
less than `--bar` times transformers'.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import Qwen3OmniMoeForConditionalGeneration

from bench.arguments import output_file, positive_int
from hundred_million import SHAPE
from omni import Omni, SamplingParams
from omni.utils.quiet import quiet
from omni_qwen3_omni.tiny import write_tiny

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.reference import load_processor

MODELS: dict[str, dict[str, Any]] = {"tiny": {"stop_gain": 0.0, "codec_stop_gain": 0.0}, "large": SHAPE}
_TEXT = "the blue voice said a red circle was here and what you see now is it your first green square"
WORDS = _TEXT.split()
SAMPLES_PER_FRAME, LOOKAHEAD = 1920, 555
TOLERANCE = 1e-4
"""Tolerance as a part of a waveform's peak: float32 sums have another order."""
KINDS = 4
WARM_UP = 10_000
"""The first number of the requests that are not measured."""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request. tokens: of text to write. picture: RGB. sound: float32 `[n]` at 16 kHz."""

    text: str
    tokens: int
    picture: Image.Image | None = None
    sound: np.ndarray | None = None

    @property
    def frames(self) -> int:
        return 3 * self.tokens

    @classmethod
    def of(cls, number: int) -> "AskedRequest":
        """The mix repeats its sizes after four requests, its contents never."""
        chance = np.random.default_rng(number)
        kind = number % KINDS
        text = f"{number} " + " ".join(chance.choice(WORDS, (8, 4, 4, 24)[kind]))
        tokens = (24, 16, 32, 24)[kind]
        if kind == 1:
            return cls(text, tokens, picture=Image.fromarray(chance.integers(0, 256, (96, 128, 3), np.uint8)))
        if kind == 2:
            return cls(text, tokens, sound=chance.normal(0, 0.1, 32_000).astype(np.float32))
        return cls(text, tokens)


@dataclass(frozen=True, slots=True)
class SideAnswer:
    """text, waveform (float32 `[n]`), and seconds since the request was made."""

    text: str
    wave: torch.Tensor
    ttft: float
    first_audio: float
    total: float


@dataclass(frozen=True, slots=True)
class SideRun:
    """The answers of one side at one concurrency, the seconds for all of them, and the processor seconds (all threads)."""

    answers: Sequence[SideAnswer]
    seconds: float
    cpu_seconds: float

    def row(self) -> dict[str, float]:
        """Throughput per second and median latency in seconds."""
        asked = [AskedRequest.of(number) for number in range(len(self.answers))]
        frames = sum(request.frames for request in asked)
        return {
            "requests/s": len(asked) / self.seconds,
            "tokens/s": sum(request.tokens for request in asked) / self.seconds,
            "frames/s": frames / self.seconds,
            "frames/cpu s": frames / self.cpu_seconds,
            **{what: median(getattr(a, what) for a in self.answers) for what in ("ttft", "first_audio", "total")},
        }

    def queued(self, clients: int) -> "SideRun":
        """The run in a queue of `clients` clients: each waits for the answers of the others."""
        took = [answer.total for answer in self.answers]
        seen = []
        for number, answer in enumerate(self.answers):
            wait = sum(took[(number - ahead) % len(took)] for ahead in range(1, clients))
            seen.append(
                SideAnswer(answer.text, answer.wave, wait + answer.ttft, wait + answer.total, wait + answer.total)
            )
        return SideRun(seen, self.seconds, self.cpu_seconds)


class Transformers:
    """transformers' own model and processor, a request at a time."""

    def __init__(self, folder: Path) -> None:
        self._processor = load_processor(folder)
        with quiet():
            self._model: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self._token_times: list[float] = []
        self._model.thinker.register_forward_hook(lambda *_: self._token_times.append(time.perf_counter()))

    def run(self, numbers: Sequence[int]) -> SideRun:
        start, cpu = time.perf_counter(), time.process_time()
        answers = [self._answer(AskedRequest.of(number)) for number in numbers]
        return SideRun(answers, time.perf_counter() - start, time.process_time() - cpu)

    def _answer(self, request: AskedRequest) -> SideAnswer:
        self._token_times.clear()
        start = time.perf_counter()
        parts: list[dict[str, object]] = []
        if request.picture is not None:
            parts.append({"type": "image", "image": request.picture})
        if request.sound is not None:
            parts.append({"type": "audio", "audio": request.sound})
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": request.text}]}]
        inputs = self._processor(
            text=self._processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False),
            audio=None if request.sound is None else [request.sound],
            images=None if request.picture is None else [request.picture],
            return_tensors="pt",
        )
        with torch.inference_mode(), quiet(), warnings.catch_warnings():
            # The talker is fed embeddings: that its penalty counts generated codes only is how the model is meant.
            warnings.filterwarnings("ignore", message="Passing `repetition_penalty` with `inputs_embeds`")
            sequences, wave = self._model.generate(
                **inputs,
                speaker="ethan",
                thinker_do_sample=False,
                talker_do_sample=False,
                thinker_max_new_tokens=request.tokens,
                talker_max_new_tokens=request.frames + 1,
            )
        ids = sequences[0, inputs["input_ids"].shape[1] :]
        text = self._processor.tokenizer.decode(ids, skip_special_tokens=True)
        total = time.perf_counter() - start
        return SideAnswer(text, wave.reshape(-1), self._token_times[0] - start, total, total)


def run_transformers(folder: Path, count: int) -> SideRun:
    """The first `count` requests, one after the other."""
    reference = Transformers(folder)
    reference.run([WARM_UP + index for index in range(KINDS)])
    return reference.run(range(count))


def run_omni(folder: Path, count: int, clients: int) -> SideRun:
    """The first `count` requests, from `clients` threads."""
    with Omni(folder, device="cpu", dtype="float32") as omni:
        _from_clients(lambda number: _ask(omni, number), [WARM_UP + index for index in range(KINDS)], clients)
        return _from_clients(lambda number: _ask(omni, number), range(count), clients)


def _ask(omni: Omni, number: int) -> SideAnswer:
    request = AskedRequest.of(number)
    parts: list[dict[str, Any]] = []
    if request.picture is not None:
        parts.append({"type": "image_url", "image_url": request.picture})
    if request.sound is not None:
        parts.append({"type": "input_audio", "input_audio": request.sound})
    sampling = {
        "thinker": SamplingParams(max_tokens=request.tokens, temperature=0.0),
        "talker": SamplingParams(max_tokens=request.frames + 1, temperature=0.0),
    }
    chat = [{"role": "user", "content": [*parts, {"type": "text", "text": request.text}]}]
    result = omni.generate(chat, voice="ethan", sampling=sampling, stream=False)
    metrics, audio = result.metrics, result.audio
    assert metrics.ttft is not None
    assert metrics.first_audio is not None
    assert audio is not None
    assert result.usage.tokens["thinker"] == request.tokens
    return SideAnswer(result.text, audio, metrics.ttft, metrics.first_audio, metrics.total)


def _from_clients(ask: Callable[[int], SideAnswer], numbers: Sequence[int], clients: int) -> SideRun:
    answers: dict[int, SideAnswer] = {}
    failures: list[BaseException] = []
    waiting, lock = iter(numbers), threading.Lock()

    def client() -> None:
        while not failures:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            try:
                answers[number] = ask(number)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    if failures:
        raise failures[0]
    return SideRun([answers[number] for number in numbers], seconds, cpu_seconds)


def check_equal(ours: SideRun, theirs: SideRun) -> int:
    """Compares the answers, and returns their number. Raises AssertionError where one differs."""
    pairs = list(zip(ours.answers, theirs.answers, strict=False))
    for number, (our, their) in enumerate(pairs):
        assert our.text == their.text, f"request {number}: {our.text!r} is not {their.text!r}"
        assert our.wave.shape == their.wave.shape == (AskedRequest.of(number).frames * SAMPLES_PER_FRAME - LOOKAHEAD,)
        peak, apart = float(their.wave.abs().max()), float((our.wave - their.wave).abs().max())
        assert peak > 0.01, f"request {number}: nothing is to be heard"
        assert apart <= TOLERANCE * peak, f"request {number}: waveforms are {apart:g} apart, at a peak of {peak:g}"
    return len(pairs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Numbers of both sides for a model at one concurrency, and how many times better omni's are."""

    model: str
    clients: int
    transformers: dict[str, float]
    omni: dict[str, float]
    ratio: dict[str, float]

    @classmethod
    def of(cls, model: str, clients: int, theirs: SideRun, ours: SideRun) -> "Comparison":
        their_row, our_row = theirs.queued(clients).row(), ours.row()
        ratio = {
            what: our_row[what] / their_row[what] if "/" in what else their_row[what] / our_row[what]
            for what in our_row
        }
        return cls(model, clients, their_row, our_row, ratio)

    def show(self) -> None:
        print(f"{'':18}" + "".join(f"{what:>14}" for what in self.ratio))
        rows = ("transformers", self.transformers), ("omni", self.omni), ("omni is better by", self.ratio)
        for who, row in rows:
            print(f"{who:18}" + "".join(f"{number:14.3f}" for number in row.values()), flush=True)


def compare(name: str, concurrency: Sequence[int], requests: int) -> Iterator[Comparison]:
    """Runs one model: transformers once, then omni at each concurrency."""
    with tempfile.TemporaryDirectory() as folder:
        write_tiny(folder, **MODELS[name])
        theirs = run_transformers(Path(folder), requests)
        for clients in concurrency:
            ours = run_omni(Path(folder), _whole_mixes(max(requests, 3 * clients)), clients)
            compared = check_equal(ours, theirs)
            print(f"\n{name}, {clients} at once, {len(ours.answers)} requests, {compared} compared and equal")
            comparison = Comparison.of(name, clients, theirs, ours)
            comparison.show()
            yield comparison


def _whole_mixes(requests: int) -> int:
    return -(-requests // KINDS) * KINDS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--concurrency", nargs="+", type=positive_int, default=[1, 4, 16])
    parser.add_argument(
        "--requests", type=positive_int, default=8, help="by transformers; omni runs at least three a client"
    )
    parser.add_argument("--threads", type=positive_int, default=1, help="torch threads of both sides")
    parser.add_argument("--cores", type=positive_int, help="hold the process to this many cores")
    parser.add_argument("--bar", type=float, default=4.0)
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    given = parser.parse_args()
    given.requests = _whole_mixes(given.requests)
    return given


def main() -> int:
    given = arguments()
    if given.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    torch.set_num_threads(given.threads)
    cores = len(os.sched_getaffinity(0))
    print(f"torch {torch.__version__}, {given.threads} torch thread(s), {cores} core(s), float32")
    found = [c for name in given.models for c in compare(name, given.concurrency, given.requests)]
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(comparison) for comparison in found], indent=1))
    judged = [comparison for comparison in found if comparison.model == "large"]
    if not judged:
        return 0
    last = max(judged, key=lambda comparison: comparison.clients)
    reached = last.ratio["frames/s"]
    print(f"\nlarge, {last.clients} at once: {reached:.2f} times transformers' throughput; the bar is {given.bar}")
    return 0 if reached >= given.bar else 1


if __name__ == "__main__":
    raise SystemExit(main())
