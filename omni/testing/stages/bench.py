"""A stage kind under test, and its workers."""

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine.rows import divide_memory
from omni.payload import Payload
from omni.pipeline import Stage
from omni.sampling import SamplingParams
from omni.stage import MOST_CPU_ROWS, Done, Footprint, LoadedStage, StageContext, StageKind, StageWorker
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.stages.accesses import broken_by
from omni.testing.stages.errors import calling, require
from omni.testing.stages.session import StageSession
from omni.testing.stages.values import Values

NAME = "checked"
"""The name of the stage."""
APART = 4
"""Ticks between two messages of a request that is interrupted: it is also interrupted while it waits for inputs."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Checked:
    """The arguments of `check_stage`."""

    kind: Callable[[], StageKind]
    options: msgspec.Struct
    inputs: Sequence[Sequence[Payload]]
    refused: Sequence[Sequence[Payload]]
    model: str | None
    checkpoint: Path | None
    sampling: SamplingParams
    dtype: str
    tolerance: float
    seeds: Sequence[int]
    unused: Collection[str]


class StageBench:
    """expected: of each sample; of a request alone, until the author's own are set."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.expected: list[Values] = []
        self.most: dict[str, int] = {}
        """The highest number of each name that `usage` has reported."""
        self.points = 0
        """Ticks of all samples, fed in parts, on a device that runs one operation in each tick."""
        self._empty = TemporaryDirectory(prefix="omni-test-")
        if checked.checkpoint is None:
            Path(self._empty.name, "config.json").write_text(json.dumps({"model_type": NAME}))

    def close(self) -> None:
        self._empty.cleanup()

    def names(self, copies: int = 1) -> dict[str, int]:
        """Requests by name, each with the number of its sample."""
        count = len(self.checked.inputs)
        return {f"{copy}-{index}": index for copy in range(copies) for index in range(count)}

    def load(self, device: Device) -> LoadedStage:
        checked = self.checked
        with calling("the kind", "make it without arguments"):
            kind = checked.kind()
        stage = Stage(name=NAME, kind=kind.name, model=checked.model, options=checked.options)
        folder = checked.checkpoint or Path(self._empty.name)
        context = StageContext(
            stage=stage,
            options=checked.options,
            checkpoint=Checkpoint(folder),
            device=device,
            dtype=_DTYPES[checked.dtype],
            load_format="auto",
        )
        with torch.inference_mode():
            loaded = kind.load(context)
        require(
            isinstance(loaded, LoadedStage) and isinstance(loaded.footprint, Footprint),
            f"load returns an omni.stage.LoadedStage with a Footprint, not {type(loaded).__name__}",
            "return omni.stage.PlainStage(worker), or derive from omni.stage.MeasuredStage",
        )
        return loaded

    def session(self, device: Device | None = None, read_after: int = 0) -> StageSession:
        """Returns a session with a new worker. device: a CPU by default."""
        device = device or CpuDevice()
        loaded = self.load(device)
        with torch.inference_mode():
            worker = loaded.start(divide_memory({NAME: loaded}, device, None, None, MOST_CPU_ROWS).memory[NAME].pages)
        require(
            isinstance(worker, StageWorker),
            f"start returns an omni.stage.StageWorker, not {type(worker).__name__}",
            "derive from omni.stage.MailboxWorker, and return the worker",
        )
        device.synchronize()
        return StageSession(worker, device, self.checked.sampling, read_after, self.most)

    def run(
        self,
        device: Device | None = None,
        *,
        copies: int = 1,
        apart: int = 0,
        read_after: int = 0,
        front_end: bool = False,
        guard: Callable[[Device], AbstractContextManager[object]] | None = None,
        remedy: str,
    ) -> StageSession:
        """Plays every sample, and requires the outputs and that nothing is held. For apart see `StageSession.play`, for guard
        `StageSession`."""
        session, names = self.session(device, read_after), self.names(copies)
        session.guard = guard or session.guard
        scripts = {
            name: session.script(name, self.checked.inputs[index], front_end=front_end) for name, index in names.items()
        }
        with torch.inference_mode():
            session.play(scripts, apart=apart)
        for name, index in names.items():
            self.require_right(session, name, index, remedy)
        self.finish(session, "after the requests")
        return session

    def finish(self, session: StageSession, when: str) -> None:
        """Requires that no resources are held, and that the worker can be closed twice."""
        with torch.inference_mode():
            session.require_free(when)
            with calling("close", "let it do nothing the second time"):
                session.worker.close()
                session.worker.close()
        if isinstance(session.device, SimulatedDevice):
            try:
                session.device.assert_no_races()
            except AssertionError as error:
                raise broken_by(session.device.races[0]) from error

    def require_right(self, session: StageSession, name: str, index: int, remedy: str) -> None:
        """The request is done, with the expected outputs."""
        end = session.ends.get(name)
        require(isinstance(end, Done), f"request {name!r}, of sample {index}, is done: {_described(end)}", remedy)
        require(
            isinstance(end, Done) and bool(end.reason) and all(isinstance(n, int) for n in end.counts.values()),
            "Done has a reason and counts",
            'give finish(request_id, "stop", {"frames": 7})',
        )
        if self.expected:
            difference = session.values(name).difference(self.expected[index], self.checked.tolerance)
            require(
                not difference, f"request {name!r}, of sample {index}, gets the expected outputs: {difference}", remedy
            )


def _described(end: object) -> str:
    return "it is not" if end is None else f"it got {end}"
