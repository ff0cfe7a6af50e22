"""The listener of one answer's speech, who plays it from its first chunk on."""


class Listener:
    """Slack is the sound that lies ahead of the listener when a chunk comes. Below 0 the listener has heard nothing for so long, an
    underrun; later chunks are played that much later. Times in seconds, of any clock that only grows."""

    def __init__(self) -> None:
        self._played_until: float | None = None

    def hear(self, now: float, sound: float) -> float | None:
        """A chunk comes. sound: its length. Returns the slack; None for the first chunk."""
        until = self._played_until
        if until is None:
            self._played_until = now + sound
            return None
        self._played_until = max(until, now) + sound
        return until - now
