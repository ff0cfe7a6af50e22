"""Python's switch interval while models are open."""

import sys
import threading


class SwitchInterval:
    """The smallest interval that an open model asks for, and the program's own again when the last is closed. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[float] = []
        self._own = 0.0

    def lower(self, seconds: float) -> None:
        """Lowers the interval. A smaller one stays."""
        with self._lock:
            if not self._asked:
                self._own = sys.getswitchinterval()
            self._asked.append(seconds)
            self._apply()

    def restore(self, seconds: float) -> None:
        """Ends a `lower` of that many seconds."""
        with self._lock:
            self._asked.remove(seconds)
            self._apply()

    def _apply(self) -> None:
        # Python cuts to whole microseconds.
        sys.setswitchinterval(min((self._own, *self._asked)) + 5e-7)


SWITCH_INTERVAL = SwitchInterval()
"""Of this interpreter."""
