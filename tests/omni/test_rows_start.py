"""Engines as shipped: the number of rows follows from memory, the same for the stages that a request goes through."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from omni.checkpoint import Checkpoint
from omni.config import SettingsLayer
from omni.device.cpu import CpuDevice
from omni.engine import StageMemory, load_stages, resolve_pipeline
from omni.engine.rows import chosen_costs
from omni.errors import ConfigError
from omni.stage import MOST_CPU_ROWS, MOST_ROWS, LoadedStage, RowStage
from omni.testing.engines import TickedEngine
from omni_ar.loaded import LoadedAr
from tests.support.omni_engine import OmniEngine, in_tree_plugins
from tests.support.reference import chat
from tests.support.tiny_text import TextEngine, greedy, write_text_model

pytestmark = pytest.mark.thorough

SMALL: dict[str, object] = {
    **{f"{stage}.max_model_len": 256 for stage in ("thinker", "talker")},
    **{f"{tower}.max_batch_length": 32 for tower in ("audio_encoder", "vision_encoder")},
    **{f"{tower}.cache_bytes": 0 for tower in ("audio_encoder", "vision_encoder")},
    **{f"{tower}.held_bytes": 1000 for tower in ("audio_encoder", "vision_encoder")},
    **{f"{stage}.max_num_batched_tokens": 64 for stage in ("thinker", "talker")},
    "code2wav.first_chunk_frames": 1,
    "code2wav.chunk_frames": 2,
}
"""Small, so that measuring is quick."""
ROWS = ("thinker", "talker", "code2wav")


def divided(tiny_model: Path, memory_bytes: int, **overrides: object) -> Mapping[str, StageMemory]:
    settings = SMALL | {f"{stage}.max_num_seqs": rows for stage, rows in overrides.items()}
    engine = TickedEngine(tiny_model, in_tree_plugins(), settings, memory_bytes=memory_bytes).engine
    engine.close()
    return engine.memory


def total(memory: Mapping[str, StageMemory]) -> int:
    return sum(each.total for each in memory.values())


@pytest.fixture(scope="module")
def ample(tiny_model: Path) -> Mapping[str, StageMemory]:
    return divided(tiny_model, 10**10)


def test_much_memory_gives_the_maximum_and_its_pages(ample: Mapping[str, StageMemory]) -> None:
    assert {name: ample[name].rows for name in ROWS} == dict.fromkeys(ROWS, MOST_CPU_ROWS)
    assert ample["vision_encoder"].rows is None
    assert ample["thinker"].pages == MOST_CPU_ROWS * 16


def test_less_memory_gives_all_stages_as_many_fewer_rows(tiny_model: Path, ample: Mapping[str, StageMemory]) -> None:
    least = sum(memory.weights for memory in ample.values())
    found = [divided(tiny_model, least + (total(ample) - least) * part // 16) for part in (10, 5)]
    numbers = [{memory[name].rows for name in ROWS} for memory in found]
    assert all(len(each) == 1 for each in numbers)
    rows = [each.pop() or 0 for each in numbers]
    assert MOST_CPU_ROWS > rows[0] > rows[1] >= 1
    for memory, part in zip(found, (10, 5), strict=True):
        assert total(memory) <= least + (total(ample) - least) * part // 16


def test_numbers_of_the_user_are_kept(tiny_model: Path) -> None:
    memory = divided(tiny_model, 10**10, thinker=3, code2wav=5)
    assert [memory[name].rows for name in ROWS] == [3, MOST_CPU_ROWS, 5]


def test_a_prefix_cache_takes_no_page_that_a_row_needs(tiny_model: Path) -> None:
    """A request of typical length has 16 pages here. The user's rows leave pages of the thinker to its cache."""
    whole = divided(tiny_model, 10**10, thinker=3)
    memory = divided(tiny_model, total(whole) - 200 * whole["thinker"].page_bytes, thinker=3)
    assert memory["talker"].rows == whole["talker"].rows
    assert memory["talker"].pages == MOST_CPU_ROWS * 16
    assert 100 < memory["thinker"].pages < whole["thinker"].pages - 190


def test_memory_for_less_than_a_row_is_refused(tiny_model: Path, ample: Mapping[str, StageMemory]) -> None:
    weights = sum(memory.weights for memory in ample.values())
    with pytest.raises(ConfigError, match=r"^engine\.memory_bytes: the stages need ") as error:
        divided(tiny_model, weights + 100_000)
    table = {row.split()[0]: row.split()[1] for row in str(error.value).splitlines()[2:]}
    assert {table[name] for name in ROWS} == {"1"}


@pytest.mark.parametrize("graphs", [False, True])
def test_a_row_takes_the_counted_memory(tiny_model: Path, graphs: bool) -> None:
    checkpoint = Checkpoint(tiny_model)
    plan = resolve_pipeline(checkpoint, in_tree_plugins(), [SettingsLayer("test", SMALL)])
    loaded = load_stages(plan, checkpoint, CpuDevice(), dtype="float32", load_format="auto", graphs=graphs)
    for name in ROWS:
        stage = loaded[name]
        assert isinstance(stage, RowStage)
        assert (stage.chosen_rows, stage.rows, stage.footprint.rows) == (None, 1, 1)
        with torch.inference_mode():
            cost = stage.count_row()
            fixed = []
            for rows in (33, 48):
                stage.set_rows(rows)
                assert (stage.rows, stage.footprint.rows) == (rows, rows)
                fixed.append(stage.footprint.fixed)
        assert fixed[1] - fixed[0] == 15 * cost.bytes > 0
        assert bool(cost.pages) == isinstance(stage, LoadedAr)


def test_a_row_costs_as_much_where_the_user_set_their_number(tiny_model: Path) -> None:
    def loaded(settings: dict[str, object]) -> dict[str, LoadedStage]:
        checkpoint = Checkpoint(tiny_model)
        plan = resolve_pipeline(checkpoint, in_tree_plugins(), [SettingsLayer("test", SMALL | settings)])
        return load_stages(plan, checkpoint, CpuDevice(), dtype="float32", load_format="dummy")

    derived, chosen = loaded({}), loaded({f"{name}.max_num_seqs": 6 for name in ROWS})
    with torch.inference_mode():
        costs = {name: stage.count_row() for name, stage in derived.items() if isinstance(stage, RowStage)}
    assert chosen_costs(derived) == {}
    assert chosen_costs(chosen) == costs
    assert costs.keys() == set(ROWS)


@pytest.mark.parametrize(("length", "pages"), [(64, 4), (1024, 64), (8192, 64), (65536, 512)])
def test_a_typical_request_is_a_thousand_tokens_or_an_eighth(tmp_path: Path, length: int, pages: int) -> None:
    write_text_model(tmp_path, "tied")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.config["max_position_embeddings"] = 65536
    settings = SettingsLayer("test", {"text.max_model_len": length})
    plan = resolve_pipeline(checkpoint, in_tree_plugins(), [settings])
    (stage,) = load_stages(plan, checkpoint, CpuDevice(), dtype="float32", load_format="dummy").values()
    assert isinstance(stage, RowStage)
    assert stage.count_row().pages == pages


def test_more_than_sixteen_speak_at_once_as_shipped(tiny_model: Path) -> None:
    chats = [chat(f"Question {index}", max_codes=6) for index in range(24)]
    engine = OmniEngine(tiny_model)
    results = engine.run(chats)
    assert {name: engine.most_rows[name] for name in ROWS} == dict.fromkeys(ROWS, 24)
    for index in (0, 17, 23):
        alone = engine.answer(chats[index])
        assert (results[index].ids, results[index].frames) == (alone.ids, alone.frames)


def test_a_hundred_run_at_once_with_the_rows_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni.engine.build.most_rows", lambda device: MOST_ROWS)
    model = write_text_model(tmp_path, "tied")
    engine = TextEngine(tmp_path, {}, memory_bytes=10**9)
    assert engine.engine.memory["text"].rows == MOST_ROWS
    prompts = [[index + 1, 7, index] for index in range(100)]
    recorders = [engine.submit(str(index), prompt, max_tokens=16) for index, prompt in enumerate(prompts)]
    with torch.inference_mode():
        engine.engine.tick()
    rows = 0
    while not engine.engine.idle:
        with torch.inference_mode():
            engine.engine.tick()
        rows = max(rows, engine.engine.usage()["text"]["rows"])
    assert rows == 100
    for index in (0, 50, 99):
        assert recorders[index].tokens == greedy(model, prompts[index])


def test_unbounded_memory_has_the_pages_of_sixteen_full_requests(tmp_path: Path) -> None:
    write_text_model(tmp_path, "tied")
    memory = TextEngine(tmp_path, {}).engine.memory["text"]
    assert (memory.rows, memory.pages) == (MOST_CPU_ROWS, MOST_CPU_ROWS // 2 * 256 // 16)
