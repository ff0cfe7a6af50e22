"""Engines for tests: `engine_for`, and the engine that a test ticks."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omni.config import SettingsLayer
from omni.device import Device
from omni.engine import Plan, plan_of
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins, load_plugins
from omni.testing.engines.pipeline import PipelineEngine
from omni.testing.engines.result import EngineResult
from omni.testing.engines.ticked import GIVEN_UP, TickedEngine

__all__ = ["GIVEN_UP", "EngineResult", "PipelineEngine", "TickedEngine", "engine_for"]


@contextmanager
def engine_for(
    model: Pipeline | str | Path,
    checkpoint: str | Path | None = None,
    *,
    plugins: Plugins | None = None,
    device: Device | None = None,
    overrides: Mapping[str, object] | None = None,
    change: Callable[[Plan], Plan] = lambda plan: plan,
    **options: Any,
) -> Iterator[PipelineEngine]:
    """An engine for a test, in its thread. At the end of the block it is closed; if the block raised no error, and stages still
    hold resources although all requests are finished, that is an AssertionError.

    model: a checkpoint folder, whose family builds the pipeline; or a `Pipeline`.
    checkpoint: of a `Pipeline`, the folder that its stages read. None makes one with an empty config.json.
    plugins: None takes the installed ones.
    device: None takes a `CpuDevice`. A `SimulatedDevice(seed)` runs work late and checks it for races.
    overrides: settings, `{"writer.max_num_seqs": 2}`.
    change: of the checked plan, before anything is built.
    options: fields of `EngineOptions`; the dtype is float32 if none is given.

    Raises the errors of a bad pipeline, setting or checkpoint.

        with engine_for("build/bigram") as engine:
            assert engine.answer("The").tokens
    """
    plugins = load_plugins() if plugins is None else plugins
    with TemporaryDirectory(prefix="omni-test-") as empty:
        if isinstance(model, Pipeline):
            folder = Path(checkpoint) if checkpoint is not None else Path(empty)
            if checkpoint is None:
                (folder / "config.json").write_text(json.dumps({"model_type": model.family}))
            plan: Plan | None = plan_of(model, plugins, [SettingsLayer("test", overrides or {})])
        else:
            folder, plan = Path(model), None
        engine = PipelineEngine(
            folder, plugins, overrides=overrides, device=device, change=change, plan=plan, **options
        )
        try:
            yield engine
            engine.settle()
        finally:
            engine.close()
