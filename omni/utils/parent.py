"""Ties a process to the one that started it."""

import os
import select
import threading


def exit_with(parent: int) -> None:
    """Ends this process when its parent process `parent` ends for any reason. An open socket or pipe does not indicate that: a
    process forked by the parent may hold the other end."""
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)  # it ended before, and its id may be another's now

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="omni-parent", daemon=True).start()
