"""The user's Ctrl-C, apart from a KeyboardInterrupt that code of a plugin raises. Only the standard library, for `omni.errors`."""

import threading

_ignored = False


def ignore_interrupts() -> None:
    """No Ctrl-C arrives in this process: it is an engine's, which ignores the signal."""
    global _ignored
    _ignored = True


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is the user's Ctrl-C, which Python raises in the main thread only. In other threads a plugin has raised it,
    and it is an error like any other."""
    return (  # `isinstance` also asks for `__class__`, which may be a property of a plugin's exception
        issubclass(type(error), KeyboardInterrupt)
        and not _ignored
        and threading.current_thread() is threading.main_thread()
    )
