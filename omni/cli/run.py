"""`omni run`: answers a prompt, and prints the text as it comes."""

from dataclasses import dataclass
from pathlib import Path

import typer

from omni.api import Metrics, Omni, Output
from omni.api.arguments import MAX_SAMPLES
from omni.cli.display import Display, summary
from omni.cli.errors import stdout_error
from omni.cli.interrupt import unwinding
from omni.cli.options import Choices
from omni.cli.speech import STDOUT, Speech, descriptor_of, numbered, speech_to
from omni.errors import InputError, OmniError, quoted
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.timeline.file import REMEDY
from omni.utils.files import real, write_problem

_DEFAULT_OUT = "out.wav"
"""File for the speech, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The command line's arguments."""

    model: str
    prompt: str
    choices: Choices
    images: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    system: str | None = None
    out: str | None = None
    raw: bool = False
    voice: str | None = None
    modalities: tuple[str, ...] | None = None
    max_tokens: int | None = None
    seed: int | None = None
    n: int = 1
    timeline: Path | None = None

    @property
    def speech_option(self) -> str:
        """The option that requests speech: `--raw` streams it to stdout by default."""
        return "--raw" if self.raw and self.out == "-" else "--out"

    @property
    def out_is_stdout(self) -> bool:
        """Whether speech goes to stdout; text then goes to stderr."""
        return self.out is not None and descriptor_of(self.out) == STDOUT


def answer(arguments: RunArguments) -> None:
    """Streams the text to stdout, writes the wav, and reports on stderr. Raises OmniError; BrokenPipeError without a reader of
    stdout."""
    answers, unfit = _answers(arguments)
    _check_timeline(arguments)
    choices = arguments.choices
    omni = Omni(
        arguments.model,
        device=choices.device,
        dtype=choices.dtype,
        load_format=choices.load_format,
        config=choices.config,
        overrides=choices.overrides(),
        timeline=arguments.timeline,
        family=choices.family,
        extensions=choices.extensions,
    )
    with unwinding(), omni:
        modalities = _modalities(arguments, omni.modalities)
        speaks = "audio" in modalities
        if speaks and unfit is not None:
            raise unfit
        sampling = {stage: SamplingParams(seed=arguments.seed) for stage in omni.pipeline.sampling_stages}
        if omni.pipeline.main_stage is not None:
            params = SamplingParams(seed=arguments.seed, max_tokens=arguments.max_tokens)
            sampling[omni.pipeline.main_stage] = params
        messages, voice = _messages(arguments), arguments.voice
        outputs = omni.generate(messages, modalities=modalities, voice=voice, sampling=sampling, n=arguments.n)
        shown = omni.pipeline.text_stage
        with outputs, Display(shown, arguments.n, to_stderr=arguments.out_is_stdout) as display:
            for output in outputs:
                display.show(output)
                answers[output.sample].take(output)
                if not _wanted(arguments, display, answers):
                    _raise_first(arguments, display, answers)
        # Before the model is closed, so that a timeline that cannot be written costs no answer.
        for each in answers:
            each.report(speaks=speaks)
    _raise_first(arguments, display, answers)


class _Answer:
    """The speech of one answer, and how the answer ended."""

    def __init__(self, name: str, speech: Speech | None, *, raw: bool) -> None:
        """speech: None if it cannot be written, which matters only if the model speaks. raw: whether it has no header."""
        self.error: OmniError | None = None
        self.lost: OmniError | None = None
        """The error of writing its speech, if any."""
        self._name = name
        self._speech = speech
        self._raw = raw
        self._rate = 0
        self._metrics: Metrics | None = None
        self._last: dict[str, Payload] = {}
        """The last payload of each other output."""

    def take(self, output: Output) -> None:
        if output.audio is not None and output.sample_rate is not None and self._speech is not None:
            self._rate = output.sample_rate
            try:
                self._speech.push(output.audio, output.sample_rate)
            except OmniError as error:
                self.lost, self._speech = error, None
        for modality, payloads in output.outputs.items():
            self._last[modality] = payloads[-1]
        if output.finished:
            self._metrics, self.error = output.metrics, output.error

    def report(self, *, speaks: bool) -> None:
        if self._speech is not None:
            try:
                if self._speech.finish():
                    form = f" (16-bit little-endian mono PCM, {self._rate} Hz)" if self._raw else ""
                    typer.echo(f"wrote {self._name}{form}", err=True)
                elif speaks:
                    typer.echo(f"the model produced no audio: {self._name} was not written", err=True)
            except OmniError as error:
                self.lost = error
        for modality, payload in self._last.items():
            shapes = [f"{name} {list(tensor.shape)}" for name, tensor in payload.tensors.items()]
            typer.echo(f"{modality}: {', '.join([quoted(payload.meta), *shapes])}", err=True)
        if self._metrics is not None:
            typer.echo(summary(self._metrics), err=True)


def _answers(arguments: RunArguments) -> tuple[list[_Answer], InputError | None]:
    """One answer for each of `n`, and the error of an unwritable default file: the model may produce no speech."""
    name = _DEFAULT_OUT if arguments.out is None else arguments.out
    asked = arguments.out is not None or arguments.voice is not None or "audio" in (arguments.modalities or ())
    unfit: InputError | None = None
    answers = []
    for sample in range(min(arguments.n, MAX_SAMPLES)):  # the limit is checked later
        speech: Speech | None = None
        try:
            speech = speech_to(name, sample, arguments.n, raw=arguments.raw)
        except InputError as error:
            if asked:
                raise
            unfit = error
        written = name if descriptor_of(name) is not None else str(numbered(Path(name), sample, arguments.n))
        answers.append(_Answer(written, speech, raw=arguments.raw))
    return answers, unfit


def _wanted(arguments: RunArguments, display: Display, answers: list[_Answer]) -> bool:
    """Whether any output can still be written, after stdout or a stream of speech failed."""
    if display.problem is None and not any(each.lost for each in answers):
        return True
    if arguments.out is not None and not all(each.lost for each in answers):
        return True
    return display.problem is None and not arguments.out_is_stdout


def _raise_first(arguments: RunArguments, display: Display, answers: list[_Answer]) -> None:
    for each in answers:
        if each.error is not None:
            raise each.error
    if display.problem is not None:
        raise stdout_error(display.problem)
    for each in answers:
        if each.lost is not None:
            gone = arguments.out_is_stdout and isinstance(each.lost.__cause__, BrokenPipeError)
            raise BrokenPipeError if gone else each.lost


def _modalities(arguments: RunArguments, gives: tuple[str, ...]) -> tuple[str, ...]:
    """The requested modalities, by default all of the model."""
    wanted = gives if arguments.modalities is None else arguments.modalities
    if arguments.out is not None and "audio" not in wanted:
        remedy = "ask a model that speaks for audio, or leave it out"
        raise InputError(arguments.speech_option, "needs audio among the modalities", remedy)
    return wanted


def _check_timeline(arguments: RunArguments) -> None:
    if arguments.timeline is None:
        return
    problem = write_problem(arguments.timeline)
    if problem is not None:
        raise InputError("--timeline", problem, REMEDY)
    if arguments.modalities is not None and "audio" not in arguments.modalities:
        return
    out = Path(_DEFAULT_OUT if arguments.out is None else arguments.out)
    samples = range(min(arguments.n, MAX_SAMPLES))
    if real(arguments.timeline) in [real(numbered(out, sample, arguments.n)) for sample in samples]:
        raise InputError("--timeline", f"{arguments.timeline} is the wav's name too", "give two different names")


def _messages(arguments: RunArguments) -> list[dict[str, object]]:
    parts = [
        *({"type": "image_url", "image_url": image} for image in arguments.images),
        *({"type": "input_audio", "input_audio": audio} for audio in arguments.audios),
        {"type": "text", "text": arguments.prompt},
    ]
    messages: list[dict[str, object]] = [{"role": "user", "content": parts}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    return messages
