"""The timeline of one device."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

import torch

from omni.device import Device, category_of
from omni.timeline.recorder import DeviceClock, Fit, Ran, Recorder
from omni.timeline.trace import MAIN, HostSpan, Interval, PhaseSpan, Trace

CAPACITY = 200_000
"""Phases of a recording: about 100 MB, and about ten seconds of two stages at full speed."""


class Timeline:
    """Observes the launches of a device from its creation until `close`, and records those between `start` and `stop`. Create it
    before the stages are loaded: a graph that was captured unobserved is one phase. It belongs to the thread that drives the
    device; another thread may create, start and stop it while that thread is idle."""

    def __init__(self, device: Device, stages: Sequence[str] = (), capacity: int = CAPACITY) -> None:
        """stages: names of stages; a stream without such a name counts as a stage of its own."""
        self._device = device
        self._stages = tuple(sorted(stages, key=len, reverse=True))
        self._timer = device.timer()
        self._recorder = Recorder(self._timer, capacity)
        self._clock: DeviceClock | None = None
        device.launch_observer = self._recorder

    @property
    def recording(self) -> bool:
        return self._recorder.recording

    def start(self) -> None:
        """Starts a new recording. Takes less than a millisecond of host time."""
        self._clock = DeviceClock(self._timer) if self._timer is not None else None
        self._recorder.start(self._clock)

    def poll(self) -> None:
        """Reads the events of phases that have run; never waits. For times in which the host is idle."""
        self._recorder.poll()

    def stop(self) -> Trace:
        """Ends the recording. Phases that have not run are only counted: synchronize first, or let the engine idle."""
        recorder = self._recorder
        recorder.stop()
        recorder.poll()
        if self._clock is None:
            fit = Fit(0, 1.0, 0)
        else:
            fit = self._clock.fit().not_before((ran.launched.began, ran.start) for ran in recorder.ran)
        zero = recorder.started
        ends: dict[str, int] = {}
        phases = [self._phase(ran, fit, zero, ends) for ran in recorder.ran]
        phases.sort(key=lambda span: span.launched.start)
        host = [
            HostSpan(self._place(did.stream)[0], did.name, did.numbers, Interval(did.began - zero, did.ended - zero))
            for did in recorder.did
        ]
        host.sort(key=lambda span: span.took.start)
        device = self._device.torch_device
        name = f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
        return Trace(
            name,
            tuple(phases),
            host=tuple(host),
            dropped=recorder.dropped,
            unfinished=recorder.unread,
            error=fit.error,
            started=zero,
        )

    def close(self) -> None:
        self._recorder.stop()
        self._device.launch_observer = None

    def _phase(self, ran: Ran, fit: Fit, zero: int, ends: dict[str, int]) -> PhaseSpan:
        launched = ran.launched
        stage, lane = self._place(launched.stream)
        # Consecutive phases of a stream share an event, so the later one may seem to begin a little early.
        start = max(fit.host(ran.start) - zero, ends.get(launched.stream, 0))
        end = ends[launched.stream] = max(fit.host(ran.end) - zero, start)
        took = Interval(launched.began - zero, launched.ended - zero)
        category = category_of(launched.phase)
        return PhaseSpan(
            stage=stage,
            lane=lane,
            phase=launched.phase,
            category=category,
            step=launched.step,
            launched=took,
            ran=Interval(start, end),
        )

    def _place(self, stream: str) -> tuple[str, str]:
        for stage in self._stages:
            if stream == stage:
                return stage, MAIN
            if stream.startswith(f"{stage}-"):
                return stage, stream.removeprefix(f"{stage}-")
        return stream, MAIN


def watched(device: Device, stages: Sequence[str] = ()) -> AbstractContextManager[Timeline]:
    return closing(Timeline(device, stages))
