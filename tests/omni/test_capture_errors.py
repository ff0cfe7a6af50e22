"""A model that cannot be captured is named when the engine starts, with the way around."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from omni.device import Graph, Launch, Stream
from omni.device.cpu import CpuDevice
from omni.errors import ConfigError
from tests.support.tiny_text import TextEngine, write_text_model


class Refusing(CpuDevice):
    """Fails to capture, as a device does whose phase waits for it."""

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        error = RuntimeError("operation not permitted when stream is capturing")
        error.add_note(f"in phase {launches[-1].phase.__name__}, while it was captured")
        raise error


def test_the_stage_the_phase_and_the_remedy_are_named(tmp_path: Path):
    write_text_model(tmp_path / "model", "untied")
    with pytest.raises(ConfigError) as caught:
        TextEngine(tmp_path / "model", device=Refusing(), graphs=True)
    assert str(caught.value) == (
        "engine.graphs: stage 'text' cannot be captured: operation not permitted when stream is capturing (in phase "
        "run_forward, while it was captured); make the phase ask nothing of the device, or run without graphs "
        "(--eager, engine.graphs=false)"
    )


def test_without_graphs_it_runs(tmp_path: Path):
    write_text_model(tmp_path / "model", "untied")
    engine = TextEngine(tmp_path / "model", device=Refusing(), graphs=False)
    recorder = engine.submit("0", [1, 2, 3], max_tokens=2)
    engine.run()
    assert len(recorder.tokens) == 2
