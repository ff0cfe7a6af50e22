"""The terminal output during an answer, and the summary after it."""

import sys
from collections import defaultdict
from typing import Self

import typer

from omni.api import Metrics, Output
from omni.cli.streams import drop

_ERASE_LINE = "\r\x1b[K"


class Display:
    """Text to stdout as it comes; a line on stderr, if that is a terminal, that counts the seconds of speech. If both are
    terminals, the line waits for the end of the text, which it would overwrite. Each of several answers (`samples`) is shown when
    it is complete. text_stage: None without text. to_stderr: the text too, since stdout has the speech."""

    def __init__(self, text_stage: str | None, samples: int = 1, *, to_stderr: bool = False) -> None:
        self.problem: OSError | None = None
        """The error of writing text, if any. Later text is not shown."""
        self._text_stage = text_stage
        self._samples = samples
        self._to_stderr = to_stderr
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._shared = to_stderr or sys.stdout.isatty()
        self._progress = sys.stderr.isatty()
        self._seconds = 0.0
        self._mid_line = False
        self._line_shown = False

    def show(self, output: Output) -> None:
        if self._samples > 1:
            self._texts[output.sample].append(output.text)
            if output.finished and self._text_stage is not None:
                self._write(f"--- {output.sample}\n{''.join(self._texts.pop(output.sample))}\n")
            return
        if output.text:
            self._write(output.text)
            self._mid_line = not output.text.endswith("\n")
        if output.audio is not None and output.sample_rate is not None:
            self._seconds += len(output.audio) / output.sample_rate
        text_finished = self._text_stage is None or self._text_stage in output.finish_reasons
        if text_finished:
            self._end_line()
        if self._progress and self._seconds and (text_finished or not self._shared):
            typer.echo(f"{_ERASE_LINE}audio {self._seconds:.1f} s", nl=False, err=True)
            self._line_shown = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            return  # the terminal may no longer be read
        self._end_line()
        if self._line_shown:
            typer.echo(_ERASE_LINE, nl=False, err=True)

    def _end_line(self) -> None:
        if self._mid_line:
            self._write("\n")
            self._mid_line = False

    def _write(self, text: str) -> None:
        if self.problem is not None:
            return
        try:
            typer.echo(text, nl=False, err=self._to_stderr)  # which flushes
        except OSError as error:
            self.problem = error
            drop(sys.stderr if self._to_stderr else sys.stdout)


def summary(metrics: Metrics) -> str:
    times = [
        ("TTFT", metrics.ttft, "{:.3f} s"),
        ("first audio", metrics.first_audio, "{:.3f} s"),
        ("audio", metrics.audio_seconds or None, "{:.2f} s"),
        ("RTF", metrics.rtf, "{:.3f}"),
        ("total", metrics.total, "{:.3f} s"),
    ]
    lines = [" | ".join(f"{name} {shape.format(value)}" for name, value, shape in times if value is not None)]
    for name, stage in metrics.stages.items():
        rate = stage.tokens_per_second
        if rate is not None:
            drafts = f", {stage.drafts}" if stage.drafts.drafted else ""
            lines.append(f"{name}: {stage.counts['tokens']} tokens, {rate:.1f} tokens/s{drafts}")
    return "\n".join(lines)
