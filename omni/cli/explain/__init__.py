"""`omni explain`: the stages and settings of a model, and their origins."""

from omni.cli.explain.report import make_report
from omni.cli.explain.text import as_text
from omni.cli.options import Choices
from omni.cli.target import resolve_target
from omni.cli.terminal import echo, echo_json, takes_lines


def explain(model: str, choices: Choices, *, measure: bool, as_json: bool) -> None:
    """Prints a report, or the fields of `omni.cli.explain.report.Report` as JSON. Raises OmniError."""
    target = resolve_target(model, choices)
    report = make_report(model, target, measure=measure)
    if as_json:
        echo_json(report)
    else:
        echo(as_text(report, target.plan.pipeline, ascii_only=not takes_lines()))
