"""The kernels that are compiled before the weights are there are those that the start launches."""

import itertools
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

from tests.support.tiers import chosen

pytest.importorskip("triton")

from omni.config import SettingsLayer
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.engine import (
    Engine,
    EngineOptions,
    PipelineChoice,
    build_engine,
    load_stages,
    open_checkpoint,
    resolve_pipeline,
    warm,
)
from omni.errors import ConfigError
from omni.kernels import CompileCounter, Compiled, RecordingDevice, Variant, VariantRecorder
from omni.plugin.manager import load_plugins
from omni.stage import MOST_CPU_ROWS, Listeners, LoadedStage
from omni_ar.loaded import LoadedAr
from omni_ar.run import codes
from omni_qwen3_omni.tiny import write_tiny
from tests.omni.engine.launched import GPU, LaunchedDevice, pretend_gpu
from tests.support.echo_family import eventually
from tests.support.tiny_text import write_text_model

Options = dict[str, object]
ROWS: Options = {"max_num_seqs": 3, "max_model_len": 24, "max_num_batched_tokens": 16, "block_size": 8}
SIZES: Options = {"graph_batch_sizes": "[1, 3]", "graph_chunk_sizes": "[16]"}
AR: Options = ROWS | SIZES
TOWER: Options = {"max_batch_length": 64, "graph_lengths": "[32]"}
VOCODER: Options = {"max_num_seqs": 1, "graph_batch_sizes": "[1]"}
OMNI: dict[str, Options] = {
    "audio_encoder": TOWER,
    "vision_encoder": TOWER,
    "thinker": AR,
    "talker": AR,
    "code2wav": VOCODER,
}
DRAFTED: Options = {"drafter": "ngram", "draft_tokens": 2}
MODELS: dict[str, dict[str, Options]] = {kind: {"text": AR} for kind in ("tied", "moe", "window")} | {
    "omni": OMNI,
    "drafted": {"text": AR | DRAFTED},
}


def written(folder: Path, model: str) -> Path:
    if model == "omni":
        write_tiny(folder)
    else:
        write_text_model(folder, "tied" if model == "drafted" else model)
    return folder


class Start:
    """A model's plan, and its engine's start on a device."""

    def __init__(self, folder: Path, settings: dict[str, Options]) -> None:
        self.plugins = load_plugins()
        self.checkpoint = open_checkpoint(folder, self.plugins)
        given = {f"{stage}.{name}": value for stage, options in settings.items() for name, value in options.items()}
        layers = [SettingsLayer("--set", given)]
        self.plan = resolve_pipeline(self.checkpoint, self.plugins, layers, PipelineChoice())

    def load(self, device: Device, name: str, graphs: bool = True) -> LoadedStage:
        return load_stages(
            self.plan,
            self.checkpoint,
            device,
            dtype="float32",
            load_format="dummy",
            graphs=graphs,
            stages=(name,),
            listeners=Listeners(),
        )[name]

    def engine(self, device: Device, graphs: bool = True, **named: Any) -> Engine:
        settings = EngineOptions(dtype="float32", load_format="dummy", compile_processes=1, graphs=graphs)
        return build_engine(self.plan, self.checkpoint, self.plugins, device, settings, **named)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an empty cache."""
    pretend_gpu(monkeypatch)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "graphs"),
    chosen([*((model, True) for model in MODELS), ("moe", False)], itertools.product(MODELS, (True, False))),
    ids=lambda value: {True: "captured", False: "eager"}.get(value, value),
)
def test_a_start_launches_the_recorded_variants(model: str, graphs: bool, tmp_path: Path):
    start = Start(written(tmp_path, model), MODELS[model])
    for name in MODELS[model]:
        recorder, device = VariantRecorder(), LaunchedDevice()
        record_device = RecordingDevice(GPU, recorder)
        warm.record_stages({name: start.load(record_device, name, graphs)}, record_device, None)
        with torch.inference_mode():
            stage = start.load(device, name, graphs)
            stage.measure()
            stage.start(stage.footprint.fewest_pages).close()
        assert set(recorder.variants) == set(device.recorder.variants), name
        assert recorder.variants
        # Copies into host memory, after the kernels of a step.
        assert record_device.failed <= {"copy_scores", "download_samples"}


def test_frames_in_turn_are_recorded_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Which are other variants than those of frames whose kernels overlap."""
    start, found = Start(written(tmp_path, "omni"), OMNI), []
    for many in (99, 1):
        monkeypatch.setattr(codes, "_MANY_ROWS", many)
        recorder, device = VariantRecorder(), LaunchedDevice()
        record_device = RecordingDevice(GPU, recorder)
        warm.record_stages({"talker": start.load(record_device, "talker")}, record_device, None)
        with torch.inference_mode():
            stage = start.load(device, "talker")
            stage.measure()
            stage.start(stage.footprint.fewest_pages).close()
        found.append(set(recorder.variants))
        assert found[-1] == set(device.recorder.variants)
    assert found[0] < found[1]


class Processes:
    """In the place of `CompileProcesses`."""

    made: "list[Processes]"

    def __init__(self) -> None:
        self.workers = 0
        self.variants: list[Variant] = []
        self.capability = (0, 0)
        self.waited = self.closed = False
        self._thread = threading.Thread()
        self.made.append(self)

    def compile(self, variants: Iterable[Variant], capability: tuple[int, int], workers: int) -> None:
        self.capability, self.workers = capability, workers
        self._thread = threading.Thread(target=self._take, args=(variants,))
        self._thread.start()

    def _take(self, variants: Iterable[Variant]) -> None:
        for variant in variants:
            self.variants.append(variant)

    def wait(self) -> Compiled:
        self.waited = True
        if self._thread.ident is not None:
            self._thread.join()
        return Compiled(compiled=len(self.variants), known=2)

    def close(self) -> None:
        self.closed = True
        if self._thread.ident is not None:
            self._thread.join()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Processes]:
    Processes.made = []
    monkeypatch.setattr(warm, "CompileProcesses", Processes)
    return Processes.made


class OnGpu(LaunchedDevice):
    """With memory to divide, as a GPU has."""

    def free_memory(self) -> int:
        return 2**31


def test_an_engine_compiles_before_its_first_launch(made: list[Processes], tmp_path: Path):
    device = OnGpu()
    engine = Start(written(tmp_path, "moe"), MODELS["moe"]).engine(device)
    engine.close()
    [processes] = made
    assert processes.waited
    assert processes.closed
    assert processes.workers == 1
    assert processes.capability == (9, 0)
    assert set(processes.variants) == set(device.recorder.variants)
    report = engine.start_report
    assert (report.kernels_compiled, report.kernels_known) == (len(processes.variants), 2)
    assert report.kernels_late == 0
    assert min(report.load_seconds, report.measure_seconds, report.capture_seconds) > 0
    assert engine.start_reports == {"cpu": report}


def test_kernels_are_compiled_while_others_are_recorded(made: list[Processes], monkeypatch, tmp_path: Path):
    record = warm.record_stages

    def record_slowly(*arguments, **named) -> bool:
        whole = record(*arguments, **named)
        assert eventually(lambda: len(made[0].variants) > 10), (
            "no variant reaches the processes before the recording ends"
        )
        return whole

    monkeypatch.setattr(warm, "record_stages", record_slowly)
    engine = Start(written(tmp_path, "moe"), MODELS["moe"]).engine(OnGpu())
    engine.close()
    assert engine.start_report.kernels_compiled == len(made[0].variants)


def test_processes_that_were_started_before_are_used(made: list[Processes], tmp_path: Path):
    start, processes = Start(written(tmp_path, "tied"), MODELS["tied"]), Processes()
    start.engine(OnGpu(), compile_processes=processes).close()
    assert made == [processes]
    assert processes.variants
    assert processes.closed


def test_processes_that_were_started_in_vain_are_closed(made: list[Processes], tmp_path: Path):
    start, processes = Start(written(tmp_path, "tied"), MODELS["tied"]), Processes()
    start.engine(CpuDevice(), compile_processes=processes).close()
    assert processes.closed
    assert not processes.variants


def test_kernels_of_rows_that_follow_from_memory_are_recorded(made: list[Processes], tmp_path: Path):
    settings = {name: value for name, value in ROWS.items() if name != "max_num_seqs"}
    device = OnGpu()
    engine = Start(written(tmp_path, "tied"), {"text": settings}).engine(device)
    engine.close()
    assert engine.memory["text"].rows == MOST_CPU_ROWS
    assert set(made[0].variants) >= set(device.recorder.variants)


def test_processes_are_closed_if_weights_cannot_be_loaded(made: list[Processes], tmp_path: Path):
    start = Start(written(tmp_path, "tied"), {"text": {**AR, "num_blocks": 1, "max_model_len": 256}})
    with pytest.raises(ConfigError, match="num_blocks"):
        start.engine(OnGpu())
    assert made[0].closed
    assert not made[0].variants


def test_an_engine_starts_without_processes(made: list[Processes], monkeypatch, caplog, tmp_path: Path):
    start = Start(written(tmp_path, "tied"), MODELS["tied"])

    def refuse() -> None:
        raise OSError("no memory")

    start.engine(LaunchedDevice(), graphs=False).close()
    assert len(made) == 1
    monkeypatch.setattr(warm, "CompileProcesses", refuse)
    engine = start.engine(LaunchedDevice(), graphs=False)
    engine.close()
    assert engine.start_report.kernels_compiled == 0
    assert "the start takes longer: no memory" in caplog.text


def test_stages_are_built_one_at_a_time(made: list[Processes], tmp_path: Path):
    """The dtype of a module that is being built is the process's default dtype, which two threads cannot set and reset at once."""
    threads = []

    def load(device: Device, name: str) -> LoadedStage:
        threads.append(threading.current_thread())
        return start.load(device, name)

    start = Start(written(tmp_path, "tied"), MODELS["tied"])
    warmup = warm.KernelWarmup(warm.WarmupPlan(GPU, ["text"], load), 1)
    assert threads == [threading.current_thread()]
    warmup.wait()
    assert threads == [threading.current_thread()]
    warmup.close()


def test_an_equal_start_records_nothing(made: list[Processes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    recorded = Mock(wraps=warm.record_stages)
    monkeypatch.setattr(warm, "record_stages", recorded)
    folder = written(tmp_path, "tied")
    other = AR | {"graph_batch_sizes": "[2]"}
    for options, count in ((AR, 1), (AR, 1), (other, 2), (other, 2), (AR, 2)):
        Start(folder, {"text": options}).engine(OnGpu()).close()
        assert recorded.call_count == count
    assert made[0].variants == made[1].variants == made[4].variants
    assert set(made[2].variants) != set(made[0].variants)


def test_a_start_that_launches_other_kernels_forgets_the_record(made: list[Processes], monkeypatch, tmp_path: Path):
    recorded = Mock(wraps=warm.record_stages)
    monkeypatch.setattr(warm, "record_stages", recorded)
    folder = written(tmp_path, "tied")
    Start(folder, {"text": AR}).engine(OnGpu()).close()

    def late(counter: CompileCounter) -> AbstractContextManager[None]:
        counter.compiled = 1
        return nullcontext()

    with patch.object(CompileCounter, "counting", late):
        Start(folder, {"text": AR}).engine(OnGpu()).close()
    assert recorded.call_count == 1
    Start(folder, {"text": AR}).engine(OnGpu()).close()
    assert recorded.call_count == 2


def test_a_partial_record_is_not_kept(made: list[Processes], monkeypatch, tmp_path: Path):
    start = Start(written(tmp_path, "tied"), {"text": AR})
    with patch.object(LoadedAr, "warm_up", side_effect=RuntimeError("in part")) as warm_up:
        for _ in range(2):
            start.engine(OnGpu()).close()
    assert warm_up.call_count == 2


def test_launches_that_cannot_be_recorded_are_left_out(made: list[Processes], tmp_path: Path):
    def load(device: Device, name: str) -> LoadedStage:
        if name == "text":
            return start.load(device, name)
        raise SystemExit("a plugin's")

    start = Start(written(tmp_path, "tied"), MODELS["tied"])
    warmup = warm.KernelWarmup(warm.WarmupPlan(GPU, ["other", "text"], load), 1)
    assert warmup.wait().compiled > 10
    warmup.close()


def test_a_device_that_cannot_be_asked_ends_the_warmup(made: list[Processes], monkeypatch, tmp_path: Path):
    def fail(device: object) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "get_device_capability", fail)
    start = Start(written(tmp_path, "tied"), MODELS["tied"])
    warmup = warm.KernelWarmup(warm.WarmupPlan(GPU, ["text"], start.load), 1)
    warmup.wait()
    assert made[0].closed
    assert not made[0].variants
