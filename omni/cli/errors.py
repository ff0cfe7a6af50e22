"""Errors on the terminal: one line, or a line and a table, and exit code 1."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from omni.cli import interrupt
from omni.cli.streams import drop, stdout_problem
from omni.errors import ConfigError, InputError, OmniError


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Turns an exception into one line on stderr and exit code 1; with `debug`, re-raises it."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(interrupt.code()) from None
    except Exception as error:
        if interrupt.came():
            raise typer.Exit(interrupt.code()) from error
        error = _of_stdout(error)
        if isinstance(error, BrokenPipeError):
            # The reader ended (`omni run ... | head`): nothing to report.
            drop(sys.stdout)
            raise typer.Exit(1) from None
        if debug:
            raise
        say(error)
        raise typer.Exit(1) from error


def say(error: Exception) -> None:
    known = isinstance(error, OmniError)
    message = str(error) if known else f"{type(error).__name__}: {error} (--debug shows where)"
    # A setting's error may end in a table, the stages' memory; messages of libraries are joined to one line.
    lines = message.splitlines() if isinstance(error, ConfigError) else [" ".join(message.split())]
    typer.echo("\n".join(["error: " + lines[0], *lines[1:]]), err=True)


def stdout_error(error: OSError) -> Exception:
    """The error of unwritable standard output: BrokenPipeError if its reader ended, otherwise InputError."""
    if isinstance(error, BrokenPipeError):
        return error
    return InputError("standard output", f"cannot be written ({error.strerror})", "send it where there is free space")


def _of_stdout(error: Exception) -> Exception:
    """The error, converted if it is of standard output, which is then redirected to the null device."""
    if not isinstance(error, OSError) or error.filename is not None:
        return error
    problem = stdout_problem()
    if problem is None:
        return error
    drop(sys.stdout)
    return stdout_error(problem)
