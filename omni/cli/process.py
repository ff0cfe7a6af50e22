"""The command line as a process: its streams, its end."""

import sys

from omni.cli import interrupt, streams


def run() -> None:
    """Runs the command of the arguments. Needs `streams.mend` and `interrupt.install` first."""
    from omni.cli.commands import app
    from omni.cli.errors import say, stdout_error

    try:
        app()
    except OSError as error:
        # From output before a command runs, such as help.
        problem = streams.stdout_problem()
        if problem is None:
            raise
        streams.drop(sys.stdout)
        say(stdout_error(problem))
        raise SystemExit(1) from error
    finally:
        if interrupt.came():
            # Threads of libraries may still wait for something.
            interrupt.end()
