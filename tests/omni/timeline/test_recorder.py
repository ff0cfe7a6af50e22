"""Records of launches, and their times."""

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from omni.device import Device, DeviceTimer, Event, Launch, Stream
from omni.device.cpu import CpuDevice
from omni.timeline import MAIN, Timeline, recorder
from omni.timeline.trace import RECORDING

# A device that runs launches at once, and reports later times by a clock of its own.


@dataclass(slots=True)
class LateStamp:
    timer: "LateTimer"
    at: int
    number: int

    def done(self) -> bool:
        return self.number < self.timer.reached


class LateTimer:
    """rate, offset: of the device's clock over the host's. late: nanoseconds from a stamp until the device reaches it.

    given: stamps that were given out and not back. back: those that were given back. reached: the number of the first stamp that is
    not done; tests move it.
    """

    def __init__(self, rate: float, offset: int, late: int) -> None:
        self.given: list[LateStamp] = []
        self.back: list[Event] = []
        self.stamps = 0
        self.reached = 0
        self._rate = rate
        self._offset = offset
        self._late = late

    def device(self, host: int) -> int:
        return round(host * self._rate) + self._offset

    def stamp(self, stream: Stream) -> LateStamp:
        stamp = LateStamp(self, self.device(time.perf_counter_ns() + self._late), self.stamps)
        self.stamps += 1
        self.given.append(stamp)
        return stamp

    def elapsed(self, first: Event, second: Event) -> int:
        assert isinstance(first, LateStamp)
        assert isinstance(second, LateStamp)
        assert first.done()
        assert second.done()
        return second.at - first.at

    def give_back(self, stamp: Event) -> None:
        self.back.append(stamp)
        self.given = [one for one in self.given if one is not stamp]

    def probe(self) -> tuple[LateStamp, int, int]:
        before = time.perf_counter_ns()
        stamp = LateStamp(self, self.device(time.perf_counter_ns()), -1)
        return stamp, before, time.perf_counter_ns()


class LateDevice(CpuDevice):
    """clock: its timer."""

    def __init__(self, rate: float = 1.0, offset: int = 0, late: int = 1_000_000) -> None:
        super().__init__()
        self.clock = LateTimer(rate, offset, late)

    def timer(self) -> DeviceTimer:
        return self.clock


def touch(rows: torch.Tensor) -> None:
    rows.add_(1)


def copy_touched(rows: torch.Tensor) -> None:
    rows.clone()


def fail() -> None:
    raise ValueError("this phase fails")


def started(device: Device, capacity: int = 20_000) -> tuple[Timeline, Stream]:
    """A recording under way, and the stream of its stage."""
    timeline = Timeline(device, ["s"], capacity)
    timeline.start()
    return timeline, device.stream("s")


def test_a_device_without_an_observer_runs_phases():
    device, rows = CpuDevice(), torch.zeros(2)
    device.launch(device.stream("s"), touch, rows)
    with device.host_span(device.stream("s"), "work", step=1):
        device.launch(device.stream("s"), touch, rows)
    device.host_did("s", "work", device.host_time())
    assert device.launch_observer is None
    assert device.host_time() == 0
    assert rows.tolist() == [2, 2]


def test_every_launch_between_start_and_stop_appears_once():
    device = CpuDevice()
    timeline = Timeline(device, ["stage"])
    stream, copies, other = (device.stream(name) for name in ("stage", "stage-copy", "transfer"))
    rows = torch.zeros(2)
    device.launch(stream, touch, rows)  # before the start
    timeline.start()
    device.launch(stream, touch, rows)
    device.launch(copies, copy_touched, rows)
    device.replay(stream, device.capture(stream, "twice", [Launch.of(touch, rows), Launch.of(copy_touched, rows)]))
    device.launch(other, touch, rows)
    trace = timeline.stop()
    device.launch(stream, touch, rows)  # after the end
    assert [(span.stage, span.lane, span.phase) for span in trace.phases] == [
        ("stage", MAIN, "touch"),
        ("stage", "copy", "copy_touched"),
        ("stage", MAIN, "touch"),
        ("stage", MAIN, "copy_touched"),
        ("transfer", MAIN, "touch"),
    ]
    assert trace.dropped == trace.unfinished == 0
    starts = [span.launched.start for span in trace.phases]
    assert starts == sorted(starts)
    assert all(0 <= span.launched.start <= span.launched.end for span in trace.phases)
    assert all(span.ran == span.launched for span in trace.phases), "the CPU runs a phase when it is launched"


def test_a_closed_timeline_records_nothing():
    device = CpuDevice()
    timeline, stream = started(device)
    timeline.close()
    device.launch(stream, touch, torch.zeros(2))
    assert timeline.stop().phases == ()


def test_a_phase_that_fails_is_recorded_and_raises():
    device = CpuDevice()
    timeline, stream = started(device)
    with pytest.raises(ValueError, match="this phase fails"):
        device.launch(stream, fail)
    assert [span.phase for span in timeline.stop().phases] == ["fail"]


def test_launches_belong_to_the_step_of_the_innermost_host_span():
    device = CpuDevice()
    (timeline, stream), rows = started(device), torch.zeros(2)
    with device.host_span(stream, "execute_model", step=7, decodes=3):
        device.launch(stream, touch, rows)
        with device.host_span(stream, "part"):
            device.launch(stream, touch, rows)
    device.launch(stream, touch, rows)
    trace = timeline.stop()
    assert [span.step for span in trace.phases] == [7, 7, None]
    outer, inner = trace.host
    assert (outer.name, dict(outer.numbers)) == ("execute_model", {"step": 7, "decodes": 3})
    assert outer.took.start <= inner.took.start <= inner.took.end <= outer.took.end
    assert outer.took.start <= trace.phases[0].launched.start <= trace.phases[1].launched.end <= outer.took.end


def test_host_work_that_is_reported_at_its_end_is_recorded_from_its_start():
    device = CpuDevice()
    timeline, stream = Timeline(device, ["s"]), device.stream("s")
    early = device.host_time()
    timeline.start()
    since = device.host_time()
    device.launch(stream, touch, torch.zeros(2))
    device.host_did("s", "plan", since, step=3)
    device.host_did("engine", "route", early)  # what began before the recording is not in it
    trace = timeline.stop()
    (did,), (phase,) = trace.host, trace.phases
    assert (did.stage, did.name, dict(did.numbers)) == ("s", "plan", {"step": 3})
    assert did.took.start <= phase.launched.start <= phase.launched.end <= did.took.end
    assert phase.step is None


def test_memory_is_bounded_and_dropped_entries_are_counted():
    device = CpuDevice()
    timeline, stream = started(device, capacity=10)
    for _ in range(25):
        device.launch(stream, touch, torch.zeros(2))
    trace = timeline.stop()
    assert (len(trace.phases), trace.dropped) == (10, 15)
    timeline, stream = started(device, capacity=3)
    for _ in range(5):
        with device.host_span(stream, "work"):
            pass
    assert (len(timeline.stop().host), timeline.stop().dropped) == (3, 2)


def test_a_start_forgets_earlier_records():
    device = CpuDevice()
    timeline, stream = Timeline(device), device.stream("s")
    for count in (3, 2):
        timeline.start()
        for _ in range(count):
            device.launch(stream, touch, torch.zeros(2))
        assert len(timeline.stop().phases) == count


def test_events_are_read_when_they_are_done_and_never_waited_for():
    device = LateDevice()
    timeline, stream = started(device)
    for _ in range(4):
        device.launch(stream, touch, torch.zeros(2))
    assert len(device.clock.given) == 8
    device.clock.reached = 5  # the third phase has begun and is not over
    timeline.poll()
    assert len(device.clock.given) == 4, "the events of two phases are used again"
    trace = timeline.stop()
    assert (len(trace.phases), trace.unfinished) == (2, 2)
    assert all(span.ran.start >= span.launched.end for span in trace.phases)
    timeline.start()
    assert not device.clock.given


def test_host_spans_have_the_time_in_which_phases_were_recorded():
    """By a clock that only recording moves: a stamp takes 5 us, and the work of a phase 100."""
    device = LateDevice()
    now, timer, stream = [0], device.clock, device.stream("s")
    stamp = timer.stamp

    def slow_stamp(stream: Stream) -> LateStamp:
        now[0] += 5_000
        return stamp(stream)

    def work() -> None:
        now[0] += 100_000

    timeline = Timeline(device)
    timeline.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "stamp", slow_stamp)
        patch.setattr(recorder, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
        with device.host_span(stream, "outer"):
            device.launch(stream, work)
            with device.host_span(stream, "inner"):
                device.launch(stream, work)
                device.moment(stream, "done")
    inner, outer = timeline._recorder.did
    assert (inner.ended - inner.began, inner.numbers[RECORDING]) == (115_000, 15_000)
    assert (outer.ended - outer.began, outer.numbers[RECORDING]) == (225_000, 25_000)


@pytest.mark.parametrize("reached", [0, 3])
def test_a_moment_has_one_event_which_is_used_again_once(reached: int):
    device = LateDevice()
    timeline, stream = Timeline(device), device.stream("s")
    timeline.start()
    device.launch(stream, touch, torch.zeros(2))
    device.moment(stream, "done")
    assert device.clock.stamps == len(device.clock.given) == 3
    device.clock.reached = reached
    trace = timeline.stop()
    if reached:
        assert [span.phase for span in trace.phases] == ["touch", "done"]
        assert trace.phases[1].ran.start == trace.phases[1].ran.end
    timeline.start()
    back = device.clock.back
    assert len(back) == len({id(stamp) for stamp in back}) == 3, "a start gives unread ones back"


def test_unread_events_are_bounded():
    device = LateDevice()
    (timeline, stream), rows = started(device), torch.zeros(1)
    for _ in range(17_000):
        device.launch(stream, touch, rows)
        device.clock.given.clear()  # a list is slow to search
    trace = timeline.stop()
    assert trace.unfinished == 16_384
    assert trace.dropped == 17_000 - 16_384


@pytest.mark.parametrize(("rate", "offset"), [(1.0, 0), (1.0, -(10**15)), (1.01, 10**12), (0.99, 5)])
def test_runs_have_times_of_the_hosts_clock(rate: float, offset: int):
    late = 3_000_000
    device = LateDevice(rate, offset, late)
    timeline, stream = started(device)
    for _ in range(6):
        device.launch(stream, touch, torch.zeros(2))
        time.sleep(0.01)
    device.clock.reached = device.clock.stamps
    trace = timeline.stop()
    assert len(trace.phases) == 6
    for span in trace.phases:
        # A stamp follows the start of the launch by the interpreter's time.
        assert abs(span.ran.start - span.launched.start - late) < 200_000
        assert span.ran.end >= span.ran.start


def test_no_phase_runs_before_its_launch():
    # The device's clock is 2 ms behind that of the probes, as with an error of that size in the middle of a probe.
    device = LateDevice(late=-2_000_000)
    timeline, stream = started(device)
    for _ in range(3):
        device.launch(stream, touch, torch.zeros(2))
    device.clock.reached = device.clock.stamps
    spans = timeline.stop().phases
    assert min(span.ran.start - span.launched.start for span in spans) == 0
