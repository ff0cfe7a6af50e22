"""`omni run`: one question, answered as it comes."""

from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from omni.api import Metrics, Omni, Output
from omni.api.ask import MAX_SAMPLES
from omni.cli.display import Display, summary
from omni.cli.options import Choices
from omni.errors import InputError, OmniError
from omni.media import save_wav
from omni.pipeline import Pipeline
from omni.sampling_params import SamplingParams
from omni.timeline.file import REMEDY
from omni.timeline.target import real, why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The command line's arguments."""

    model: str
    prompt: str
    choices: Choices
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    system: str | None = None
    out: Path | None = None
    voice: str | None = None
    modalities: tuple[str, ...] | None = None
    max_tokens: int | None = None
    seed: int | None = None
    n: int = 1
    timeline: Path | None = None


def answer(question: Question) -> None:
    """Streams the text to stdout, writes the wav, and reports on stderr. Raises OmniError."""
    out = _out(question)
    _check_timeline(question, out)
    choices = question.choices
    with Omni(
        question.model,
        device=choices.device,
        dtype=choices.dtype,
        load_format=choices.load_format,
        config=choices.config,
        overrides=choices.overrides(),
        timeline=question.timeline,
    ) as omni:
        modalities = _modalities(question, omni.modalities)
        outputs = omni.generate(
            _messages(question),
            modalities=modalities,
            voice=question.voice,
            sampling=_sampling(question, omni.pipeline),
            n=question.n,
        )
        answers = [_Answer(_numbered(out, sample, question.n)) for sample in range(question.n)]
        with Display(omni.pipeline.text_stage, samples=question.n) as display:
            for output in outputs:
                display.show(output)
                answers[output.sample].take(output)
        # Before the model is closed: a timeline that cannot be written then takes no answer away.
        for answer in answers:
            answer.report(speaks="audio" in modalities)
    for answer in answers:
        if answer.error is not None:
            raise answer.error


class _Answer:
    """One answer's speech, and how it ended."""

    def __init__(self, out: Path) -> None:
        self.error: OmniError | None = None
        self._out = out
        self._audio: list[torch.Tensor] = []
        self._sample_rate = 0
        self._metrics: Metrics | None = None

    def take(self, output: Output) -> None:
        if output.audio is not None and output.sample_rate is not None:
            self._audio.append(output.audio)
            self._sample_rate = output.sample_rate
        if output.finished:
            self._metrics, self.error = output.metrics, output.error

    def report(self, *, speaks: bool) -> None:
        """Writes the wav, and the times to stderr."""
        if self._audio:
            save_wav(self._out, torch.cat(self._audio), self._sample_rate)
            typer.echo(f"wrote {self._out}", err=True)
        elif speaks:
            typer.echo(f"the model spoke nothing: {self._out} was not written", err=True)
        if self._metrics is not None:
            typer.echo(summary(self._metrics), err=True)


def _numbered(out: Path, sample: int, samples: int) -> Path:
    return out if samples == 1 else out.with_stem(f"{out.stem}-{sample}")


def _modalities(question: Question, gives: tuple[str, ...]) -> tuple[str, ...]:
    """What is asked for, or else all that the model gives."""
    wanted = gives if question.modalities is None else question.modalities
    if question.out is not None and "audio" not in wanted:
        raise InputError(
            "--out", "is given, but no audio is asked for", "ask a model that speaks for audio, or leave it out"
        )
    return wanted


def _out(question: Question) -> Path:
    out = question.out if question.out is not None else Path("out.wav")
    # Before the work, not after it.
    if out.is_dir() or not out.parent.is_dir():
        raise InputError("--out", f"{out} cannot be written", "give a file name in a folder that exists")
    return out


def _check_timeline(question: Question, out: Path) -> None:
    if question.timeline is None:
        return
    problem = why_not(question.timeline)
    if problem is not None:
        raise InputError("--timeline", problem, REMEDY)
    samples = range(min(question.n, MAX_SAMPLES))  # how many there may be is checked later
    if real(question.timeline) in [real(_numbered(out, sample, question.n)) for sample in samples]:
        raise InputError("--timeline", f"{question.timeline} is the wav's name too", "give two different names")


def _messages(question: Question) -> list[dict[str, object]]:
    parts = [
        *({"type": "image_url", "image_url": image} for image in question.images),
        *({"type": "input_audio", "input_audio": audio} for audio in question.audios),
        {"type": "text", "text": question.prompt},
    ]
    messages: list[dict[str, object]] = [{"role": "user", "content": parts}]
    if question.system is not None:
        messages.insert(0, {"role": "system", "content": question.system})
    return messages


def _sampling(question: Question, pipeline: Pipeline) -> dict[str, SamplingParams]:
    sampling = {stage: SamplingParams(seed=question.seed) for stage in pipeline.sampling_stages}
    if pipeline.main_stage is not None:
        sampling[pipeline.main_stage] = SamplingParams(seed=question.seed, max_tokens=question.max_tokens)
    return sampling
