"""How errors show: one line and exit code 1."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from omni.errors import OmniError


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
        typer.echo(f"error: {' '.join(message.split())}", err=True)
        raise typer.Exit(1) from error
