"""A device whose memory runs out or that cannot capture while an engine starts: what failed is named, and the way around."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device import Graph, Launch, Stream
from omni.device.cpu import CpuDevice, CpuStream
from omni.engine import load_stages, resolve_pipeline
from omni.errors import ConfigError
from omni.stage import memory_errors
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import tiny_plugins
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import TextEngine, write_text_model

MEMORY = 10**9
LARGER = "or take a device with more memory free"
ROWS = f"lower text.max_num_seqs, text.max_model_len or text.max_num_batched_tokens, {LARGER}"


class Full(CpuDevice):
    """full: whether allocations fail."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if self.full:
            raise torch.OutOfMemoryError("out of memory")
        return super().zeros(shape, dtype)


class FullAtStage(Full):
    """From where the stage makes its stream."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def stream(self, name: str, *, priority: int = 0) -> CpuStream:
        self.full = name.startswith(self._stage)
        return super().stream(name, priority=priority)


class FullOfPages(Full):
    """Takes a few blocks and no more."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.full = 78 in shape
        return super().zeros(shape, dtype)


class FullWhenMeasured(Full):
    def measure_peak(self, run: Callable[[], None]) -> int:
        raise torch.OutOfMemoryError("out of memory")


class FullAfterMeasuring(Full):
    def measure_peak(self, run: Callable[[], None]) -> int:
        peak, self.full = super().measure_peak(run), True
        return peak


class FullWhenCaptured(Full):
    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        error = torch.OutOfMemoryError("out of memory")
        error.add_note("in phase run_forward, while it was captured")
        raise error


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full") / "text"
    write_text_model(folder, "tied")
    return folder


@pytest.mark.parametrize(
    ("device", "memory", "what", "remedy"),
    [
        (FullAtStage("text"), None, "the row buffers", ROWS),
        (FullWhenMeasured(), MEMORY, "the largest steps", ROWS),
        (FullAfterMeasuring(), MEMORY, "the row buffers", ROWS),
        (
            FullOfPages(),
            None,
            "77 KV blocks",
            f"lower text.num_blocks, text.max_num_seqs or text.max_model_len, {LARGER}",
        ),
        (
            FullWhenCaptured(),
            None,
            "the captured steps",
            f"lower text.graph_batch_sizes or text.graph_chunk_sizes, {LARGER}",
        ),
    ],
)
def test_a_text_stage_names_the_allocation_that_did_not_fit(
    text: Path, device: Full, memory: int | None, what: str, remedy: str
) -> None:
    graphs = isinstance(device, FullWhenCaptured)
    with pytest.raises(ConfigError) as caught:
        TextEngine(text, {"text.num_blocks": 77}, device, memory_bytes=memory, graphs=graphs)
    assert str(caught.value) == f"engine.device: cpu has insufficient memory for {what} of stage 'text'; {remedy}"
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize(
    ("made", "stage", "what", "options"),
    [
        (tiny_checkpoint, "audio_encoder", "buffers", ("max_batch_length", "max_batch_items", "graph_lengths")),
        (tiny_checkpoint, "talker", "row buffers", ("max_num_seqs", "max_model_len", "max_num_batched_tokens")),
        (tiny_checkpoint, "code2wav", "buffers", ("max_num_seqs", "first_chunk_frames", "chunk_frames")),
        (tiny_folder, "token2wav", "buffers", ("max_num_seqs", "chunk_blocks", "blocks_before", "blocks_after")),
    ],
)
def test_every_kind_of_stage_names_its_options(
    made: Callable[[], Path], stage: str, what: str, options: Sequence[str]
) -> None:
    checkpoint = Checkpoint(made())
    plan = resolve_pipeline(checkpoint, tiny_plugins())
    with pytest.raises(ConfigError) as caught:
        load_stages(plan, checkpoint, FullAtStage(stage), dtype="float32", load_format="auto")
    assert caught.value.problem == f"cpu has insufficient memory for the {what} of stage '{stage}'"
    *others, last = (f"{stage}.{option}" for option in options)
    assert caught.value.remedy == f"lower {', '.join(others)} or {last}, {LARGER}"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_weights_that_do_not_fit(text: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def build(context: object) -> object:
        raise error("out of memory")

    monkeypatch.setattr("omni_text.model.build", build)
    with pytest.raises(
        ConfigError, match="insufficient memory for the weights of stage 'text'; take a device with more memory"
    ):
        TextEngine(text)


def test_memory_errors_name_the_options_of_the_stage_kind() -> None:
    device = CpuDevice()
    with (
        pytest.raises(ConfigError, match=r"the rows of stage 'a'; lower a\.rows, or"),
        memory_errors("a", "weights and buffers", device),
        memory_errors("a", "the rows", device, ("rows",)),
    ):
        raise MemoryError


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match="a bug"), memory_errors("a", "the rows", CpuDevice()):
        raise RuntimeError("a bug")


class Refusing(CpuDevice):
    """Fails to capture, as a device does whose phase waits for it."""

    def capture(self, stream: Stream, name: str, launches: Sequence[Launch]) -> Graph:
        error = RuntimeError("operation not permitted when stream is capturing")
        error.add_note(f"in phase {launches[-1].phase.__name__}, while it was captured")
        raise error


def test_the_stage_the_phase_and_the_remedy_are_named(text: Path):
    with pytest.raises(ConfigError) as caught:
        TextEngine(text, device=Refusing(), graphs=True)
    assert str(caught.value) == (
        "engine.graphs: stage 'text' cannot be captured: operation not permitted when stream is capturing (in phase "
        "run_forward, while it was captured); remove the synchronization from the phase, or run without graphs "
        "(--eager, engine.graphs=false)"
    )


def test_without_graphs_it_runs(text: Path):
    engine = TextEngine(text, device=Refusing(), graphs=False)
    recorder = engine.submit("0", [1, 2, 3], max_tokens=2)
    engine.run()
    assert len(recorder.tokens) == 2
