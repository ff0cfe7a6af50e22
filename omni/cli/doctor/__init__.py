"""`omni doctor`: problems of the installation, and their remedies."""

from collections.abc import Iterator

from omni.cli.doctor.check import Finding, ok, problem, warning
from omni.cli.doctor.environment import check_environment
from omni.cli.options import Choices, echo, echo_json
from omni.plugin.manager import Plugins, load_plugins

_PLUGINS = "plugins"


def examine(model: str | None, choices: Choices, *, as_json: bool) -> bool:
    """Prints every check, as lines or as a JSON list of `omni.cli.doctor.check.Check`. Returns whether there is no problem."""
    checks: list[Finding] = []
    group = ""
    for check in _checks(model, choices):
        checks.append(check)
        if not as_json:
            if check.group != group:
                echo(check.group)
                group = check.group
            echo(f"  {check.status:<7}  {check.name}: {check.detail}")
            if check.remedy:
                echo(f"           -> {check.remedy}")
    if as_json:
        echo_json(checks)
    else:
        echo(_summary(checks))
    return not any(check.status == "problem" for check in checks)


def _checks(model: str | None, choices: Choices) -> Iterator[Finding]:
    plugins = load_plugins()  # first: an entry module that imports torch is found only before others have
    found = list(check_environment())
    yield from found
    yield from _check_plugins(plugins)
    broken = [check.name for check in found if check.status == "problem" and check.name.startswith("import ")]
    if broken:
        detail = f"not checked: {', '.join(broken)} does not work"
        yield problem("devices", "devices and model", detail, "fix the environment first")
        return
    # These import torch.
    from omni.cli.doctor.devices import check_devices
    from omni.cli.doctor.model import check_model

    yield from check_devices()
    if model is not None:
        yield from check_model(model, choices, plugins)


def _check_plugins(plugins: Plugins) -> Iterator[Finding]:
    if not plugins.records:
        yield problem(_PLUGINS, "plugins", "none is installed", "install omni with pip, which brings its own")
    for record in plugins.records:
        for fault in record.warnings:
            detail, _, remedy = fault.partition("; ")
            yield warning(_PLUGINS, record.name, detail, remedy)
        if record.error is None:
            yield ok(_PLUGINS, record.name, ", ".join(record.registered) or "registers nothing")
            continue
        remedy = f"`omni plugins --verbose` shows where; upgrade or uninstall {record.distribution}"
        yield problem(_PLUGINS, record.name, f"is broken: {record.error.strip().splitlines()[-1]}", remedy)
    for conflict in plugins.conflicts:
        detail, _, remedy = conflict.rpartition(": ")
        yield problem(_PLUGINS, "conflict", detail, remedy)


def _summary(checks: list[Finding]) -> str:
    counts = {status: sum(check.status == status for check in checks) for status in ("problem", "warning")}
    parts = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return f"{len(checks)} checks: {', '.join(parts) or 'all is well'}"
