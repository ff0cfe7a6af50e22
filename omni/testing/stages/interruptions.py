"""Checks of requests that are paused, aborted, or fail, at every point. Each docstring names the faults that its check detects."""

from collections.abc import Callable, Iterator

import torch

from omni.stage import Failed, Pause, Resume
from omni.testing.retries import planted_faults
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.bench import APART, StageBench
from omni.testing.stages.devices import FailingDevice
from omni.testing.stages.errors import calling, require
from omni.testing.stages.session import StageSession

MOST_POINTS = 32
"""Maximum points of a check: evenly over the life of all requests."""
_LATER = "later"


def points(count: int) -> Iterator[int]:
    """Numbers below `count`, all or `MOST_POINTS` of them."""
    yield from sorted({index * count // MOST_POINTS for index in range(MOST_POINTS)}) if count else ()


def paused(bench: StageBench) -> None:
    """Catches a stage that starts work for a paused request, or forgets it."""
    for point in points(bench.points):
        _pause(bench, point)


def _pause(bench: StageBench, point: int) -> None:
    session, names = _stepping(bench), bench.names()
    first, *others = names
    scripts = _scripts(bench, session)

    def pause(tick: int) -> None:
        if tick == point and first not in session.ends:
            session.worker.inbox.append(Pause(first))

    with torch.inference_mode():
        if point == 0:
            next(scripts[first])  # it is open before it is paused
        session.play(scripts, lambda: session.finished(*others), apart=APART, act=pause)
        session.settle()
        given, end = len(session.readings.get(first, [])), session.ends.get(first)
        require(
            point > 0 or (not given and end is None),
            f"a request that is paused from the start gives nothing: it gave {given} outputs, and ended with {end}",
            "launch nothing for a request between `pause` and `resume`; keep its inputs",
        )
        if end is None:
            session.worker.inbox.append(Resume(first))
        session.play({}, lambda: session.finished(*names))
    _require_all(bench, session, f"{first!r} was paused at tick {point} and resumed: go on where it stopped")
    bench.finish(session, f"after a pause at tick {point}")


def aborted(bench: StageBench) -> None:
    """Catches an abort that leaves resources behind, a later output, or harm to other requests."""
    for point in points(bench.points):
        session = _stepping(bench)
        first = next(iter(bench.names()))
        _play_until(bench, session, point, lambda session=session, first=first: session.abort(first))  # type: ignore[misc]
        _require_all(bench, session, f"{first!r} was aborted at tick {point}: others go on as before")
        bench.finish(session, f"after an abort at tick {point}")


def all_aborted(bench: StageBench) -> None:
    """Catches work under way that outlives its requests."""
    for point in points(bench.points):
        session = _stepping(bench)
        _play_until(bench, session, point, lambda session=session: _abort_all(session))  # type: ignore[misc]
        with torch.inference_mode():
            session.require_free(f"after all were aborted at tick {point}")
        _require_later(bench, session, f"all others were aborted at tick {point}")
        bench.finish(session, f"after an abort of all at tick {point}")


def _abort_all(session: StageSession) -> None:
    for name in session.opened:
        session.abort(name)


def failures(bench: StageBench) -> None:
    """Catches a failure of one phase that ends the stage, leaves resources behind, or spoils a later request."""
    device = FailingDevice()
    bench.run(device, remedy="nothing was planted yet")
    for point in points(device.launches):
        _fail(bench, point)


def _fail(bench: StageBench, point: int) -> None:
    device = FailingDevice()
    session = bench.session(device)
    device.fail_at(point)
    with torch.inference_mode(), planted_faults():
        session.play(_scripts(bench, session))
        for name, index in bench.names().items():
            if not isinstance(session.ends[name], Failed):
                bench.require_right(session, name, index, f"launch {point} failed, and it ended as if it had not")
        session.require_free(f"after launch {point} failed")
    _require_later(bench, session, f"launch {point} had failed: reset the state that the failed work left")
    bench.finish(session, f"after launch {point} failed and a later request")


def closed(bench: StageBench) -> None:
    """Catches a close that fails while requests are there, or keeps their inputs, rows or blocks."""
    for point in points(bench.points):
        session = _stepping(bench)
        with torch.inference_mode():
            session.play(_scripts(bench, session), apart=APART, until=point)
            session.device.synchronize()
            with calling("close", "free all resources, and forget them, so that a second call does nothing"):
                session.worker.close()
                session.worker.close()
            session.device.synchronize()
        session.require_released(f"when the worker is closed at tick {point}")
        require(
            not session.held,
            f"close frees all: when the worker is closed at tick {point}, usage is {session.held}",
            "override `close`: call super().close(), then free resources of ended requests (batches under way, "
            "outputs that are lent, blocks of your own pool)",
        )


def _stepping(bench: StageBench) -> StageSession:
    """A session on a device that runs one operation in each tick."""
    return bench.session(SimulatedDevice(check=False))


def _scripts(bench: StageBench, session: StageSession) -> dict[str, Iterator[None]]:
    return {name: session.script(name, bench.checked.inputs[index]) for name, index in bench.names().items()}


def _play_until(bench: StageBench, session: StageSession, point: int, act: Callable[[], None]) -> None:
    """Plays every sample to its end, with `act` before a tick."""
    with torch.inference_mode():
        session.play(_scripts(bench, session), apart=APART, act=lambda tick: act() if tick == point else None)


def _require_all(bench: StageBench, session: StageSession, remedy: str) -> None:
    """All requests that were not aborted are right."""
    for name, index in bench.names().items():
        if name not in session.aborted:
            bench.require_right(session, name, index, remedy)


def _require_later(bench: StageBench, session: StageSession, after: str) -> None:
    with torch.inference_mode():
        session.play({_LATER: session.script(_LATER, bench.checked.inputs[0])})
    bench.require_right(session, _LATER, 0, f"it came after {after}")
