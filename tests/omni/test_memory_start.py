"""Engines that start with a bounded memory: stages are measured, and the pool is divided."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.config import SettingsLayer
from omni.device import AllocationCount, Device
from omni.device.cpu import CpuDevice
from omni.device.meta import MetaDevice
from omni.engine import StageMemory, load_stages, resolve_pipeline
from omni.errors import ConfigError
from omni.stage import MOST_CPU_ROWS, LoadedStage
from omni.testing.engines import TickedEngine
from omni_ar.loaded import LoadedAr
from tests.support.omni_engine import OmniEngine, in_tree_plugins
from tests.support.reference import chat, picture, sound
from tests.support.tiny_text import TextEngine, write_text_model

pytestmark = pytest.mark.thorough

_SMALL = {
    "audio_encoder.max_batch_length": 60,
    "audio_encoder.cache_bytes": 1000,
    "vision_encoder.cache_bytes": 2000,
    "thinker.max_model_len": 512,
    "thinker.max_num_seqs": 4,
    "thinker.max_num_batched_tokens": 128,
    "talker.max_model_len": 512,
    "talker.max_num_seqs": 4,
    "code2wav.max_num_seqs": 2,
}
_MOST, _FEWEST = MOST_CPU_ROWS * 32, 32
"""Pages of the largest prefix cache, and of one request of full length."""
_ROWS = 4 * 32
"""Pages of requests of full length in all rows."""


def _loaded(tiny_model: Path, device: Device, load_format: str = "auto") -> dict[str, LoadedStage]:
    checkpoint = Checkpoint(tiny_model)
    plan = resolve_pipeline(checkpoint, in_tree_plugins(), [SettingsLayer("test", _SMALL)])
    return load_stages(plan, checkpoint, device, dtype="float32", load_format=load_format)


def _divided(
    tiny_model: Path, memory_bytes: int | None, overrides: Mapping[str, object] | None = None
) -> Mapping[str, StageMemory]:
    """The memory of an engine's stages."""
    settings = _SMALL | dict(overrides or {})
    engine = TickedEngine(tiny_model, in_tree_plugins(), settings, memory_bytes=memory_bytes).engine
    engine.close()
    return engine.memory


def _needed(memory: Mapping[str, StageMemory]) -> int:
    return sum(m.total for m in memory.values())


@pytest.fixture(scope="module")
def ample(tiny_model: Path) -> Mapping[str, StageMemory]:
    return _divided(tiny_model, 10**10)


def test_every_stage_is_measured_and_gets_the_most_that_it_could_use(ample: Mapping[str, StageMemory]) -> None:
    assert {name: m.pages for name, m in ample.items()} == {
        "audio_encoder": 0,
        "vision_encoder": 0,
        "thinker": _MOST,
        "talker": _MOST,
        "code2wav": 0,
    }
    for memory in ample.values():
        assert memory.working is not None
        assert memory.working > 0


def test_pages_shrink_with_the_budget_and_the_sums_stay_within_it(
    tiny_model: Path, ample: Mapping[str, StageMemory]
) -> None:
    budget = _needed(ample) - 100 * ample["thinker"].page_bytes
    memory = _divided(tiny_model, budget)
    assert budget - 2 * ample["thinker"].page_bytes < _needed(memory) <= budget
    for stage in ("thinker", "talker"):
        assert _FEWEST < memory[stage].pages < _MOST
    # Both could use as many more pages, so both get as many.
    assert memory["thinker"].pages == memory["talker"].pages


def test_too_little_memory_is_refused_with_the_numbers_of_every_stage(
    tiny_model: Path, ample: Mapping[str, StageMemory]
) -> None:
    fewest = _needed(ample) - sum((_MOST - _FEWEST) * ample[stage].page_bytes for stage in ("thinker", "talker"))
    memory = _divided(tiny_model, fewest)
    assert {memory[stage].pages for stage in ("thinker", "talker")} == {_FEWEST}
    with pytest.raises(ConfigError, match=f"the stages need {fewest:,} bytes and may take {fewest - 1:,}") as error:
        _divided(tiny_model, fewest - 1)
    rows = str(error.value).splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["audio_encoder", "vision_encoder", "thinker", "talker", "code2wav"]


def test_memory_too_small_for_weights_is_refused_without_measuring(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuDevice, "measure_peak", lambda self, run: pytest.fail("measured"))
    with pytest.raises(ConfigError, match=r"engine\.memory_bytes: the stages need"):
        _divided(tiny_model, 1_000_000)


def test_pages_that_the_user_chose_are_given(tiny_model: Path, ample: Mapping[str, StageMemory]) -> None:
    chosen = {"talker.num_blocks": 40}
    unbounded = _divided(tiny_model, None, chosen)
    assert (unbounded["thinker"].pages, unbounded["talker"].pages) == (_ROWS, 40)
    budget = _needed(ample) - 100 * ample["talker"].page_bytes
    memory = _divided(tiny_model, budget, chosen)
    assert memory["talker"].pages == 40
    assert memory["thinker"].pages > _FEWEST
    assert _needed(memory) <= budget


def test_without_a_bound_nothing_is_measured(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "measure_peak", lambda self, run: pytest.fail("measured"))
    assert {m.working for m in _divided(tiny_model, None).values()} == {None}


def test_answers_are_the_same_after_measuring(tiny_model: Path) -> None:
    chats = [chat(sound(0.5), picture(56, 84), "What is this?"), chat("Hello", max_codes=30)]
    plain = OmniEngine(tiny_model, _SMALL)
    measured = OmniEngine(tiny_model, _SMALL, memory_bytes=10**10)
    assert all(not any(counts.values()) for counts in measured.engine.counters().values())
    for asked in chats:
        expected, result = plain.answer(asked), measured.answer(asked)
        assert (result.ids, result.frames) == (expected.ids, expected.frames)
        assert (result.wave == expected.wave).all()


def test_the_meta_device_reports_footprints_without_weights(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith("index.json"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with AllocationCount(torch.device("cpu")) as count:
        sketched = _loaded(tmp_path, MetaDevice(), "dummy")
        host = count.peak
    loaded = _loaded(tiny_model, CpuDevice())
    assert sketched.keys() == loaded.keys()
    for name, stage in loaded.items():
        footprint, sketch = stage.footprint, sketched[name].footprint
        assert replace(sketch, fixed=0) == replace(footprint, fixed=0)
        assert sketch.weights > 0
        # On the host, staging buffers are in the same memory.
        assert 0 < sketch.fixed <= footprint.fixed
    assert host < sum(stage.footprint.weights + stage.footprint.fixed for stage in loaded.values())


def test_the_bytes_of_a_page_equal_the_footprint(tiny_model: Path) -> None:
    for name in ("thinker", "talker"):
        stage = _loaded(tiny_model, CpuDevice())[name]
        assert isinstance(stage, LoadedAr)
        with torch.inference_mode(), AllocationCount(torch.device("cpu")) as count:
            worker = stage.start(50)
            many = count.live
        # The pages, the null block, and the worker's own staging buffers, which are counted as fixed.
        staging = stage.footprint.fixed
        assert 51 * stage.footprint.page_bytes <= many < 51 * stage.footprint.page_bytes + staging
        worker.close()


def test_long_prompts_and_many_rows_take_more_working_memory(tmp_path: Path) -> None:
    write_text_model(tmp_path, "moe")

    def working(**options: object) -> int:
        overrides = {f"text.{name}": value for name, value in options.items()}
        engine = TextEngine(tmp_path, overrides, memory_bytes=10**9).engine
        engine.close()
        (memory,) = engine.memory.values()
        assert memory.working is not None
        return memory.working

    small = working(max_num_seqs=2, max_model_len=32, max_num_batched_tokens=16)
    assert small < working(max_num_seqs=2, max_model_len=256, max_num_batched_tokens=16)
    assert small < working(max_num_seqs=2, max_model_len=32, max_num_batched_tokens=31)
    assert small < working(max_num_seqs=16, max_model_len=32, max_num_batched_tokens=16)


@pytest.mark.parametrize("options", [{"max_model_len": 2}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 1}])
def test_the_smallest_limits_can_be_measured(tmp_path: Path, options: Mapping[str, object]) -> None:
    write_text_model(tmp_path, "tied")
    overrides = {f"text.{name}": value for name, value in options.items()}
    engine = TextEngine(tmp_path, overrides, memory_bytes=10**9)
    recorder = engine.submit("a", [5], max_tokens=1)
    engine.run()
    assert len(recorder.tokens) == 1


def test_no_step_of_a_crowd_takes_more_than_was_measured(tmp_path: Path) -> None:
    write_text_model(tmp_path, "moe")
    options = {"text.max_num_seqs": 6, "text.max_model_len": 192, "text.max_num_batched_tokens": 48}
    engine = TextEngine(tmp_path, options, memory_bytes=10**9)
    working = engine.engine.memory["text"].working
    assert working is not None
    sampling = {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1, "suppress_token_ids": (1,)}
    lengths = (186, 180, 178, 176, 172, 170, 90, 185, 182, 3)
    with AllocationCount(torch.device("cpu")) as count:
        for index, length in enumerate(lengths):
            engine.submit(str(index), range(length), max_tokens=min(191 - length, 12), seed=index, **sampling)
        engine.run()
    # A tight measure as well: the crowd comes close to the largest step.
    assert working / 2 < count.peak <= working
