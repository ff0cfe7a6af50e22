"""`omni timeline`: a recorded run in numbers or as a picture."""

from collections.abc import Mapping
from pathlib import Path

import typer

from omni.cli.options import echo_json
from omni.errors import InputError
from omni.timeline import read_trace
from omni.timeline.picture import draw, excerpt_of
from omni.timeline.report import make_report, report_lines


def check_options(picture: Path | None, drawing: Mapping[str, object], *, as_json: bool) -> None:
    """Raises InputError for options of a picture without one, and of a report with a picture. drawing: by name, as given."""
    if picture is not None and as_json:
        raise InputError("--json", "applies to the report, not to a picture", "leave one of them out")
    for name, value in drawing.items():
        if picture is None and value is not None:
            raise InputError(name, "applies to a picture", "give --picture FILE too")


def show(path: Path, *, as_json: bool) -> None:
    report = make_report(read_trace(path))
    if as_json:
        echo_json(report)
        return
    for line in report_lines(report):
        typer.echo(line)


def draw_steps(path: Path, picture: Path, *, stage: str | None, steps: int, first: int | None) -> None:
    """Draws some steps. Raises InputError if the file is not a timeline, if steps are missing, and for an invalid name of the
    picture."""
    trace = read_trace(path)
    draw([(str(path.name), trace, excerpt_of(trace, stage=stage, steps=steps, first=first))], picture)
    typer.echo(f"wrote {picture}", err=True)
