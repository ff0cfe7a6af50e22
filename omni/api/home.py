"""The process in which a model lives."""

import os

from omni.errors import ForkError


class Home:
    """A forked child gets a copy of the model's memory, but none of its threads: whoever waited for them would wait for ever. And
    what is shared with the parent (device, files) is the parent's. So a child must leave all of it alone."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def away(self) -> bool:
        """Whether this is another process, forked from it."""
        return os.getpid() != self._process

    def check(self, doing: str) -> None:
        """Raises ForkError if this is another process."""
        if self.away:
            raise ForkError(
                f"{doing}: this process was forked from the one that loaded the model (process {self._process}), and the model's "
                'threads stayed there; start the process with start method "spawn", or load the model in it'
            )
