"""`omni plugins`: the installed plugins."""

import msgspec
import typer

from omni.plugin.manager import PluginRecord, load_plugins


def show(*, as_json: bool, verbose: bool) -> None:
    """Prints a table, or JSON: a list of `{name, module, distribution, error, registered}`."""
    plugins = load_plugins()
    records = plugins.records
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(records), indent=2).decode())
        return
    if not records:
        typer.echo("no plugins are installed")
        return
    rows = [("PLUGIN", "DISTRIBUTION", "REGISTERED"), *(_row(record) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, distribution, registered in rows:
        typer.echo(f"{name:<{widths[0]}}  {distribution:<{widths[1]}}  {registered}")
    for problem in plugins.conflicts:
        typer.echo(f"conflict: {problem}", err=True)
    if verbose:
        for record in records:
            if record.error is not None:
                typer.echo(f"\n{record.name} ({record.module})\n{record.error.rstrip()}")


def _row(record: PluginRecord) -> tuple[str, str, str]:
    registered = ", ".join(record.registered) or "nothing"
    if record.error is not None:
        registered = f"broken: {record.error.strip().splitlines()[-1]}"
    return record.name, record.distribution, registered
