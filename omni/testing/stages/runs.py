"""Checks of requests that run to their end. Each docstring names the faults that its check detects."""

from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise

import msgspec
import torch

from omni.device import COMPLETED, Device, SyncCheck, sync_guard
from omni.stage import RowStage, StageKind
from omni.testing.connectors.promises import Gate
from omni.testing.launch_guard import LaunchGuard
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.bench import APART, StageBench
from omni.testing.stages.devices import FailingDevice
from omni.testing.stages.errors import calling, require

_ORDERED = 8
"""Requests of different `Open.order`: more than small options have rows."""
_SET_ROWS = 3


def declares(bench: StageBench) -> None:
    """Catches a kind without a name or an options struct, and memory that is not counted."""
    with calling("the kind", "make it without arguments"):
        kind = bench.checked.kind()
    remedy = "give the class `name`, `options` (a frozen msgspec.Struct) and `load`"
    require(isinstance(kind, StageKind), "a kind is an omni.stage.StageKind", remedy)
    require(isinstance(kind.name, str) and bool(kind.name), "StageKind.name is a name", remedy)
    is_struct = isinstance(kind.options, type) and issubclass(kind.options, msgspec.Struct)
    require(is_struct and kind.options.__struct_config__.frozen, "StageKind.options is a frozen msgspec.Struct", remedy)
    require(
        isinstance(bench.checked.options, kind.options),
        f"the options are of the kind's struct, {kind.options.__name__}, not {type(bench.checked.options).__name__}",
        "pass an instance of StageKind.options",
    )
    device = FailingDevice()
    loaded = bench.load(device)
    if isinstance(loaded, RowStage) and loaded.chosen_rows is None:
        with (
            torch.inference_mode(),
            calling("RowStage.set_rows", "allocate so many rows, in place of the present ones"),
        ):
            require(loaded.rows == 1, "a stage without a number of rows is loaded with one", "wait for set_rows")
            loaded.set_rows(_SET_ROWS)
        found = loaded.rows, loaded.footprint.rows
        what = f"rows and footprint.rows are {_SET_ROWS} after set_rows({_SET_ROWS}), not {found}"
        require(found == (_SET_ROWS, _SET_ROWS), what, "count the buffers again, for Footprint(rows=)")
    with torch.inference_mode(), calling("LoadedStage.measure", "run the largest steps with inputs of its own"):
        working: object = loaded.measure()
    require(isinstance(working, int) and working >= 0, "measure returns bytes", "return 0 if it is negligible")
    session = bench.session()
    require(
        not session.held and not session.worker.outbox, "a new worker holds nothing", "free the resources of measure"
    )
    with torch.inference_mode():
        bench.finish(session, "before any request")


def alone(bench: StageBench) -> None:
    """Catches wrong outputs, and requests that do not end."""
    count = len(bench.checked.inputs)
    found = []
    for index in range(count):
        session = bench.session()
        with torch.inference_mode():
            session.play({"alone": session.script("alone", bench.checked.inputs[index])})
        bench.require_right(session, "alone", index, "it is alone: look at the work itself")
        found.append(session.values("alone"))
        bench.finish(session, "after one request")
    require(any(each.parts for each in found), "requests get outputs", "put Produced messages into the outbox")
    if not bench.expected:
        bench.expected = found
    bench.points = _points(bench)


def _points(bench: StageBench) -> int:
    session = bench.session(SimulatedDevice(check=False))
    names = bench.names()
    with torch.inference_mode():
        session.play({n: session.script(n, bench.checked.inputs[i]) for n, i in names.items()}, apart=APART)
    return session.ticks


def together(bench: StageBench) -> None:
    """Catches requests that affect each other, and rows that are not reused."""
    remedy = "it shares the stage with others: keep everything by request, and give rows of the batch their own inputs"
    bench.run(copies=3, remedy=remedy)
    bench.run(copies=2, apart=1, remedy=remedy)


def in_parts(bench: StageBench) -> None:
    """Catches a stage that expects all inputs at once, or the end with the last of them."""
    for apart in (1, 3, 7):
        bench.run(apart=apart, remedy="inputs and the end come in any tick: keep inputs until there are enough of them")


def of_two_producers(bench: StageBench) -> None:
    """Catches a stage that confuses the end of one producer with the end of all."""
    session, names = bench.session(), bench.names()
    with torch.inference_mode():
        session.play({n: session.script_of_two(n, bench.checked.inputs[i]) for n, i in names.items()}, apart=1)
    remedy = "keep Open.inputs, discard the source in `end`, and end the request when none is left"
    for name, index in names.items():
        bench.require_right(
            session, name, index, f"one of two producers ended before the other sent anything: {remedy}"
        )
    bench.finish(session, "after requests of two producers")


def by_order(bench: StageBench) -> None:
    """Catches a stage that ignores the serving order, `Open.order`."""
    session, sample = bench.session(), bench.checked.inputs[0]
    names = [f"ranked-{number}" for number in range(_ORDERED)]  # later ones come first in serving order
    orders = {name: (_ORDERED - number, number) for number, name in enumerate(names)}
    with torch.inference_mode():
        session.play({name: session.script(name, sample, order=order) for name, order in orders.items()})
    firsts = {name: session.readings[name][0].since for name in names if session.readings.get(name)}
    for first, second in pairwise(firsts):
        require(
            firsts[first] >= firsts[second],
            f"the request of the lowest Open.order is served first: {first!r}, of order {orders[first]}, had an output in "
            f"tick {firsts[first]}, and {second!r}, of order {orders[second]}, in tick {firsts[second]}",
            "give rows, and places in a batch, to waiting requests in the order of Open.order",
        )
    bench.finish(session, "after requests in another serving order")


def from_the_front_end(bench: StageBench) -> None:
    """Catches a stage that relies on a lease: inputs of the front end have none."""
    bench.run(
        front_end=True, remedy="an input of the front end has no lease and lies in host memory: use Feed.release only"
    )


def not_before_ready(bench: StageBench) -> None:
    """Catches a read before the producer's work is done, and a call that waits for it."""
    sample = next((each for each in bench.checked.inputs if any(payload.tensors for payload in each)), None)
    if sample is None:
        return
    index, session, gate = list(bench.checked.inputs).index(sample), bench.session(), Gate()
    with torch.inference_mode():
        session.open("early")
        given = [session.feed("early", payload, gate if payload.tensors else COMPLETED) for payload in sample]
        session.end("early")
        for _ in range(30):
            gate.rest()
            try:
                session.tick()
            except AssertionError as error:
                if "no call waits" in str(error):
                    require(False, "tick never waits", "ask Feed.arrived once in each tick, and go on with other work")
                raise
        for each, payload in zip(given, sample, strict=True):
            if payload.tensors:
                session.fill(each, payload)
        gate.open = True
        session.play({}, lambda: session.finished("early"))
    bench.require_right(session, "early", index, "launch nothing that reads an input before Feed.arrived is true")
    bench.finish(session, "after a late input")


def without_input(bench: StageBench) -> None:
    """Catches a request that never ends because it has no input."""
    session = bench.session()
    with torch.inference_mode():
        session.play({"empty": session.script("empty", [])})
    bench.finish(session, "after a request without inputs")


def read_late(bench: StageBench) -> None:
    """Catches an output whose memory is used again while its consumer reads it."""
    for after in (5, 40):
        bench.run(
            copies=2,
            read_after=after,
            remedy="its consumer read late: keep the memory of an output as it is until Produced.free",
        )


def late_devices(bench: StageBench) -> None:
    """Catches work that relies on the device being done, inputs released too early, and races."""
    for seed in bench.checked.seeds:
        bench.run(
            SimulatedDevice(seed),
            copies=2,
            apart=1 + seed % 3,
            read_after=seed % 2 * 10,
            remedy=f"the device is late (SimulatedDevice({seed})): nothing is there before its event is done, and an "
            "input is in use until then",
        )


def guarded(bench: StageBench) -> None:
    """Catches waits for the device, and work outside of phases."""
    remedy = "do tensor work in phases (Device.launch), copy results into pinned memory there, and poll an event in `advance`"

    def guard(device: Device) -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(LaunchGuard(device))
        stack.enter_context(sync_guard(device, SyncCheck.ERROR))
        return stack

    bench.run(copies=2, guard=guard, remedy=remedy)


def counted(bench: StageBench) -> None:
    """Catches a number of `usage` that is always 0. The last check."""
    never = ", ".join(repr(name) for name, most in bench.most.items() if not most and name not in bench.checked.unused)
    require(
        not never,
        f"usage counts held resources: {never} was zero in every tick of every check",
        "count the named resources of the worker, or leave the name out; if these requests never hold any, name it "
        "in unused=",
    )
