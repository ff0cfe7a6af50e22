"""`omni doctor`: problems of the installation, and their remedies."""

from collections.abc import Iterator

import msgspec
import typer

from omni.cli.doctor.check import Check, problem
from omni.cli.doctor.environment import check_environment
from omni.cli.doctor.plugins import check_plugins
from omni.cli.options import Choices
from omni.cli.terminal import echo
from omni.plugin.manager import load_plugins


def examine(model: str | None, choices: Choices, *, as_json: bool) -> bool:
    """Prints every check, as lines or as a JSON list of `omni.cli.doctor.check.Check`. Returns whether there is no problem."""
    checks: list[Check] = []
    group = ""
    for check in _checks(model, choices):
        checks.append(check)
        if not as_json:
            if check.group != group:
                echo(check.group)
                group = check.group
            echo(_line(check))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode())
    else:
        echo(_summary(checks))
    return not any(check.status == "problem" for check in checks)


def _checks(model: str | None, choices: Choices) -> Iterator[Check]:
    found = list(check_environment())
    yield from found
    plugins = load_plugins()
    yield from check_plugins(plugins)
    broken = [check.name for check in found if check.status == "problem" and check.name.startswith("import ")]
    if broken:
        detail = f"not checked: {', '.join(broken)} does not work"
        yield problem("devices", "devices and model", detail, "mend the environment first")
        return
    # These import torch.
    from omni.cli.doctor.devices import check_devices
    from omni.cli.doctor.model import check_model

    yield from check_devices()
    if model is not None:
        yield from check_model(model, choices, plugins)


def _line(check: Check) -> str:
    line = f"  {check.status:<7}  {check.name}: {check.detail}"
    return f"{line}\n           -> {check.remedy}" if check.remedy else line


def _summary(checks: list[Check]) -> str:
    counts = {status: sum(check.status == status for check in checks) for status in ("problem", "warning")}
    parts = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return f"{len(checks)} checks: {', '.join(parts) or 'all is well'}"
