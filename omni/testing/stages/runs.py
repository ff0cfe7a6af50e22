"""Checks of requests that run to their end. The docstring of each says what it catches."""

from contextlib import AbstractContextManager, ExitStack

import msgspec
import torch

from omni.device import COMPLETED, Device, SyncCheck, sync_guard
from omni.payload import Payload
from omni.stage import Failed, StageKind
from omni.testing.connectors.promises import Gate
from omni.testing.launch_guard import LaunchGuard
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.bench import APART, StageBench
from omni.testing.stages.devices import FailingDevice
from omni.testing.stages.promises import calling, require


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
    with torch.inference_mode(), calling("LoadedStage.measure", "run the largest steps with inputs of its own"):
        working: object = loaded.measure()
    require(isinstance(working, int) and working >= 0, "measure returns bytes", "return 0 if it is negligible")
    session = bench.session()
    require(not session.held and not session.worker.outbox, "a new worker holds nothing", "free what measure used")
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
    """Catches requests that disturb each other, and rows that are not given on."""
    remedy = "it shares the stage with others: keep everything by request, and give rows of the batch their own inputs"
    bench.run(copies=3, remedy=remedy)
    bench.run(copies=2, apart=1, remedy=remedy)


def in_parts(bench: StageBench) -> None:
    """Catches a stage that expects all inputs at once, or the end with the last of them."""
    for apart in (1, 3, 7):
        bench.run(
            apart=apart, remedy="inputs and the end come in any tick: keep what arrives until there is enough of it"
        )


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
        session.play({}, lambda: session.over("early"))
    bench.require_right(session, "early", index, "launch nothing that reads an input before Feed.arrived is true")
    bench.finish(session, "after a late input")


class Foreign(msgspec.Struct, frozen=True):
    """An input that no stage knows."""

    text: str = "of the suite"


def foreign_input(bench: StageBench) -> None:
    """Catches a bad input that harms others, or is lost."""
    session = bench.session()
    names = bench.names()
    scripts = {name: session.script(name, bench.checked.inputs[index]) for name, index in names.items()}
    bad = Payload(Foreign(), {"foreign": torch.zeros(3)})
    scripts["bad"] = session.script("bad", [bad])
    with torch.inference_mode():
        session.play(scripts, apart=1)
    require(
        isinstance(session.ends.get("bad"), Failed),
        f"a request with an input that the stage does not know fails: it got {session.ends.get('bad')}",
        "raise in `feed` for a meta of another type; release the input first",
    )
    for name, index in names.items():
        bench.require_right(session, name, index, "another request had a bad input: fail that one alone")
    bench.finish(session, "after a bad input")


def without_input(bench: StageBench) -> None:
    """Catches a request that never ends because nothing came for it."""
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
