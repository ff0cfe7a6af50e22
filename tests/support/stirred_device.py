"""A device whose streams run in a random order, a little at each look at an event: as late and as mixed as stream order allows."""

import random

from omni.device import Event, Stream
from support.queued_device import QueuedDevice


class StirredEvent:
    def __init__(self, device: "StirredDevice", event: Event) -> None:
        self.event = event
        self._device = device

    def done(self) -> bool:
        self._device.stir()
        return self.event.done()


class StirredDevice(QueuedDevice):
    """seed: decides which streams run how far. One seed, one order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.latest = 0
        """The most operations that were pending at once, to show that work was late."""

    def record(self, stream: Stream) -> Event:
        return StirredEvent(self, super().record(stream))

    def wait(self, stream: Stream, event: Event) -> None:
        super().wait(stream, event.event if isinstance(event, StirredEvent) else event)

    def stir(self) -> None:
        self.latest = max(self.latest, self.pending)
        busy = [stream for stream in self.streams if stream.queue]
        if busy and self._random.random() < 0.6:
            stream = self._random.choice(busy)
            self.run({stream.name}, operations=self._random.randint(1, 4))
