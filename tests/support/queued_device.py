"""A device whose streams run only when the test says so, as a busy accelerator's would."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from omni.device import COMPLETED, Device, Event, Phase, Stream


class QueuedEvent:
    def __init__(self) -> None:
        self.reached = False

    def done(self) -> bool:
        return self.reached


class QueuedStream:
    """What has been launched and not run: phases, events to mark, events to wait for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Callable[[], bool]] = deque()
        self.ran: list[str] = []


class QueuedDevice(Device):
    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.streams: list[QueuedStream] = []

    def stream(self, name: str, *, priority: int = 0) -> QueuedStream:
        self.streams.append(QueuedStream(name))
        return self.streams[-1]

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        assert isinstance(stream, QueuedStream)

        def run() -> bool:
            Device.launch(self, stream, phase, *buffers)
            stream.ran.append(phase.__name__)
            return True

        stream.queue.append(run)

    def record(self, stream: Stream) -> Event:
        assert isinstance(stream, QueuedStream)
        event = QueuedEvent()

        def mark() -> bool:
            event.reached = True
            return True

        stream.queue.append(mark)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(stream, QueuedStream)
        if event is not COMPLETED:
            stream.queue.append(event.done)

    def host_tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def synchronize(self) -> None:
        while self.run():
            pass

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()

    def run(self, names: set[str] | None = None, *, operations: int | None = None) -> int:
        """Runs what can run on the streams of these names, at most `operations` of it; returns how much that was."""
        count = 0
        for stream in self.streams:
            if names is not None and stream.name not in names:
                continue
            while stream.queue and count != operations and stream.queue[0]():
                stream.queue.popleft()
                count += 1
        return count

    @property
    def pending(self) -> int:
        return sum(len(stream.queue) for stream in self.streams)
