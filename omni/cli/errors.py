"""How errors show: one line, unless a table belongs to it, and exit code 1."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from omni.errors import ConfigError, OmniError


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Turns an exception into one line on stderr and exit code 1; with `debug`, lets it through."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # The reader went away (`omni run ... | head`). Python would say so once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        if debug:
            raise
        known = isinstance(error, OmniError)
        message = str(error) if known else f"{type(error).__name__}: {error} (--debug shows where)"
        # A setting's error may end in a table, the stages' memory; what libraries say is run together.
        lines = message.splitlines() if isinstance(error, ConfigError) else [" ".join(message.split())]
        typer.echo("\n".join(["error: " + lines[0], *lines[1:]]), err=True)
        raise typer.Exit(1) from error
