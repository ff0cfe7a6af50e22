"""The timeline of an engine, as a file."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from omni.checkpoint import Checkpoint
from omni.cli import app
from omni.device import Device, PhaseCategory
from omni.device.cpu import CpuDevice
from omni.engine import EngineOptions, EngineRequest, build_engine, resolve_pipeline
from omni.engine.engine import Engine
from omni.errors import ConfigError
from omni.payload import Payload
from omni.plugin.manager import load_plugins
from omni.sampling import SamplingParams
from omni.timeline import read_trace, write_trace
from omni.timeline.report import make_report
from tests.omni.timeline.made_trace import made_trace
from tests.support.ar_driver import plain_prompt
from tests.support.entry_points import own_entry_points
from tests.support.tiny_text import TextRecorder


def engine_of(text_model: Path, device: Device, timeline: Path | None) -> Engine:
    plugins, checkpoint = load_plugins(own_entry_points("ar", "local", "text")), Checkpoint(text_model)
    plan = resolve_pipeline(checkpoint, plugins)
    path = str(timeline) if timeline is not None else None
    return build_engine(plan, checkpoint, plugins, device, EngineOptions(dtype="float32", timeline=path))


def answer(engine: Engine, tokens: int) -> list[int]:
    recorder = TextRecorder()
    inputs = {"text": [Payload(plain_prompt(range(5)))]}
    sampling = {"text": SamplingParams(max_tokens=tokens, repetition_penalty=1.1)}
    engine.submit(EngineRequest("r", frozenset({"text"}), inputs, sampling=sampling), recorder)
    with torch.inference_mode():
        while not engine.idle:
            engine.tick()
    engine.close()
    return recorder.tokens


def test_an_engine_writes_the_launches_of_its_stages(text_model: Path, tmp_path: Path):
    tokens = answer(engine_of(text_model, CpuDevice(), tmp_path / "out.json"), tokens=6)
    assert tokens == answer(engine_of(text_model, CpuDevice(), None), tokens=6)
    trace = read_trace(tmp_path / "out.json")
    assert trace.stages == ("text", "engine")
    assert set(trace.lanes("text")) == {"main"}
    assert [span.phase for span in trace.phases].count("hand_tokens_over") == 6
    assert PhaseCategory.OTHER not in {span.category for span in trace.phases}, "every phase says what it is for"
    assert all(span.step is not None for span in trace.phases)
    (decoding,) = make_report(trace).decoding
    assert decoding.steps == 5
    done = {(one.stage, one.name): one.took.count for one in make_report(trace).host}
    ran = {("text", name): 6 for name in ("plan", "execute_model", "sample_tokens", "process_outputs")}
    turns = {("engine", name): done["engine", name] for name in ("text", "route")}
    assert done == {**ran, **turns}
    assert max(turns.values()) <= 8, "a tick that did nothing is not recorded"


def test_an_engine_that_records_nothing_is_not_watched(text_model: Path):
    device = CpuDevice()
    engine = engine_of(text_model, device, None)
    assert device.launch_observer is None
    engine.close()


@pytest.mark.parametrize("kind", ["folder", "device", "below a file", "in no folder"])
def test_a_timeline_path_that_is_no_file_is_refused_and_left_alone(text_model: Path, tmp_path: Path, kind: str):
    paths = {"folder": tmp_path, "device": Path("/dev/null"), "below a file": text_model / "config.json" / "out.json"}
    path = paths.get(kind, tmp_path / "no folder" / "out.json")
    with pytest.raises(ConfigError, match=r"engine\.timeline: .* cannot be written"):
        engine_of(text_model, CpuDevice(), path)
    assert list(tmp_path.iterdir()) == []
    assert Path("/dev/null").is_char_device()


def test_a_run_that_launches_nothing_leaves_an_older_timeline_alone(
    text_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "keep.json"
    path.write_text("older")
    engine_of(text_model, CpuDevice(), path).close()
    assert path.read_text() == "older"
    assert "keep.json was not written" in caplog.text
    answer(engine_of(text_model, CpuDevice(), path), tokens=2)
    assert read_trace(path).phases
    assert list(tmp_path.iterdir()) == [path], "what it was written to is gone"


def test_the_command_reports_and_draws(tmp_path: Path):
    write_trace(made_trace((5_000, 9_000)), tmp_path / "out.json")
    said = CliRunner().invoke(app, ["timeline", str(tmp_path / "out.json")])
    assert said.exit_code == 0
    assert "thinker: 3 decode steps" in said.stdout
    as_json = CliRunner().invoke(app, ["timeline", str(tmp_path / "out.json"), "--json"])
    assert '"idle"' in as_json.stdout
    for name in ("out.png", "out.html"):
        arguments = ["timeline", str(tmp_path / "out.json"), "--picture", str(tmp_path / name), "--steps", "2"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert (tmp_path / name).stat().st_size > 5_000
    for given, field in ((["--from", "1"], "--from"), (["--picture", str(tmp_path / "no.png"), "--json"], "--json")):
        refused = CliRunner().invoke(app, ["timeline", str(tmp_path / "out.json"), *given])
        assert refused.exit_code == 1
        assert field in refused.output
    assert not (tmp_path / "no.png").exists()
    bad = CliRunner().invoke(app, ["timeline", str(tmp_path / "out.png")])
    assert bad.exit_code == 1
    assert "out.png: the file is not JSON" in bad.stderr
