"""An engine that a test ticks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from omni.checkpoint import Checkpoint
from omni.config import SettingsLayer
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import Engine, EngineOptions, Plan, build_engine, resolve_pipeline
from omni.errors import StageError
from omni.plugin.manager import Plugins
from omni.testing.simulation.device import SimulatedDevice
from omni.testing.simulation.simulation import Simulation

GIVEN_UP = StageError("request", "being tested", "it was given up")
"""The error of a request that a test gave up."""
_MOST_TICKS = 500_000


class TickedEngine:
    """An engine over the checkpoint in `folder`, without a thread: the test ticks it.

    overrides: options by dotted path, as `--set` has them. plan: a checked pipeline, instead of the family's. change: of the
    checked plan, before anything is built. options: fields of `EngineOptions`; the dtype is float32 if none is given.
    """

    def __init__(
        self,
        folder: Path,
        plugins: Plugins,
        overrides: Mapping[str, object] | None = None,
        device: Device | None = None,
        change: Callable[[Plan], Plan] = lambda plan: plan,
        plan: Plan | None = None,
        **options: Any,
    ) -> None:
        self.folder, self.device, self.checkpoint = folder, device or CpuDevice(), Checkpoint(folder)
        self.plan = change(plan or resolve_pipeline(self.checkpoint, plugins, [SettingsLayer("test", overrides or {})]))
        settings = EngineOptions(**{"dtype": "float32", **options})
        self.engine: Engine = build_engine(self.plan, self.checkpoint, plugins, self.device, settings)

    def leave(self, request_id: str) -> None:
        """Aborts a request. It keeps the outputs that it has received."""
        self.engine.abort(request_id, GIVEN_UP)

    def tick(self) -> bool:
        with torch.inference_mode():
            return self.engine.tick()

    def run_to_end(self, until: Callable[[], bool] = lambda: False) -> None:
        """Ticks until no request is under way, or until `until` is true; then no resources are held. A real device is polled; on a
        simulated one, `simulate` skips time in which nothing waits."""
        for _ in range(_MOST_TICKS):
            if self.engine.idle:
                self.assert_free()
                return
            if until():
                return
            self.tick()
        raise AssertionError(f"stuck with {self.engine.usage()}")

    def simulate(self, tick: Callable[[], bool] | None = None) -> Simulation:
        """Its ticks on a simulated device; `Simulation.run` brings it to its end. tick: one of them, as the test has it."""
        assert isinstance(self.device, SimulatedDevice)
        return Simulation(self.device, tick or self.tick, lambda: self.engine.idle, lambda: str(self.engine.usage()))

    def assert_free(self) -> None:
        """Raises AssertionError if a stage holds resources (`StageWorker.usage`)."""
        held = {name: {k: n for k, n in usage.items() if n} for name, usage in self.engine.usage().items()}
        assert not any(held.values()), f"stages hold something though no request is under way: {held}"

    def close(self) -> None:
        self.engine.close()
