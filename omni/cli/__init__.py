"""The command line: `omni run`, `omni serve`, `omni timeline`, `omni explain`, `omni doctor`, `omni plugins`,
`omni tiny`, `omni new`.

Each imports only what it needs.
"""

import sys

# True for type checkers alone, without the slow import of typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from omni.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    try:
        # Before anything that takes time: from here on signals are handled.
        from omni.cli import interrupt, streams

        streams.reopen_closed_streams()  # first: an opened file must not take the number of a closed stream
        interrupt.install()
    except KeyboardInterrupt:
        import os

        try:
            os.write(2, b"interrupted\n")
        finally:
            os._exit(130)
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module 'omni.cli' has no attribute {name!r}")
        from omni.cli.commands import app

        return app
