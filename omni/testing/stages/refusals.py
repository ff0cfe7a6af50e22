"""Checks of inputs that a stage cannot take. Each docstring names the faults that its check detects."""

from collections.abc import Mapping, Sequence

import msgspec
import torch

from omni.payload import Payload
from omni.stage import Failed
from omni.testing.retries import planted_faults
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.bench import APART, StageBench
from omni.testing.stages.errors import require
from omni.testing.stages.session import StageSession


class Foreign(msgspec.Struct, frozen=True):
    """An input of a type that no stage supports."""

    text: str = "of the suite"


def foreign_input(bench: StageBench) -> None:
    """Catches a bad input that harms others, or is lost."""
    bad, good = Payload(Foreign(), {"foreign": torch.zeros(3)}), list(bench.checked.inputs[0])
    remedy = "raise in `feed` for a meta of another type"
    _require_refused(bench, bench.session(), {"bad": [bad], "bad-first": [bad, *good]}, remedy, apart=1)
    _require_refused(bench, bench.session(), {"bad-last": [*good, bad]}, remedy)


def refused_input(bench: StageBench) -> None:
    """Catches a refusal of the stage's own that harms others, or keeps inputs."""
    bad = {f"refused-{number}": list(each) for number, each in enumerate(bench.checked.refused)}
    if bad:
        remedy = "raise an OmniError in `feed`"
        _require_refused(bench, bench.session(), bad, remedy)
        _require_refused(bench, bench.session(SimulatedDevice(check=False)), bad, remedy, apart=APART)


def _require_refused(
    bench: StageBench, session: StageSession, bad: Mapping[str, Sequence[Payload]], remedy: str, *, apart: int = 0
) -> None:
    """The bad requests fail, and the other requests get their expected outputs."""
    _play(bench, session, bad, apart)
    for name in bad:
        end = session.ends.get(name)
        require(
            isinstance(end, Failed),
            f"a request with an input that the stage does not take fails: {name!r} got {end}",
            remedy,
        )
    _require_others(bench, session)


def incomplete_input(bench: StageBench) -> None:
    """Catches an input without its tensors that ends the stage, or a request that then never ends."""
    sample = next((each for each in bench.checked.inputs if any(payload.tensors for payload in each)), None)
    if sample is None:
        return
    session = bench.session()
    with planted_faults():  # found in a batch, it may be run again
        _play(bench, session, {"bare": [Payload(payload.meta) for payload in sample]}, 1)
        _require_others(bench, session)


def _play(bench: StageBench, session: StageSession, bad: Mapping[str, Sequence[Payload]], apart: int) -> None:
    scripts = {name: session.script(name, inputs) for name, inputs in bad.items()}
    scripts |= {name: session.script(name, bench.checked.inputs[index]) for name, index in bench.names().items()}
    with torch.inference_mode():
        session.play(scripts, apart=apart)


def _require_others(bench: StageBench, session: StageSession) -> None:
    for name, index in bench.names().items():
        bench.require_right(session, name, index, "another request had a bad input: fail that one alone")
    bench.finish(session, "after a bad input")
