"""`omni plugins`: the installed plugins."""

import typer

from omni.cli.options import echo_json
from omni.plugin.manager import load_plugins
from omni.utils.table import columns


def show(*, as_json: bool, verbose: bool) -> None:
    """Prints a table, or JSON: a list of `{name, module, distribution, error, registered, warnings}`."""
    plugins = load_plugins()
    records = plugins.records
    if as_json:
        echo_json(records)
        return
    if not records:
        typer.echo("no plugins are installed")
        return
    rows = [("PLUGIN", "DISTRIBUTION", "REGISTERED")]
    for record in records:
        registered = ", ".join(record.registered) or "nothing"
        if record.error is not None:
            registered = f"broken: {record.error.strip().splitlines()[-1]}"
        rows.append((record.name, record.distribution, registered))
    for line in columns(rows, indent=""):
        typer.echo(line)
    for record in records:
        for fault in record.warnings:
            typer.echo(f"warning: {record.name} ({record.module}): {fault}", err=True)
    for problem in plugins.conflicts:
        typer.echo(f"conflict: {problem}", err=True)
    if verbose:
        for record in records:
            if record.error is not None:
                typer.echo(f"\n{record.name} ({record.module})\n{record.error.rstrip()}")
