"""Whole requests on stages that are cut across ranks: their results are those of whole stages.

Ranks are threads here (`tests.plugins.cut_stages`); the rest of the engine is as it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni.engine import EngineOutput, EngineRequest, RequestFailed
from omni.errors import ConfigError, OmniError
from omni.parallel import RankLayout
from omni.payload import Payload
from omni.plugin import locate
from omni.plugin.manager import load_plugins
from omni.testing import engine_for
from omni.testing.simulation.late import LateDevice
from omni_ar.layers import SparseMoE
from tests.plugins.cut_stages import CutStages
from tests.plugins.matrix import Cell, covering
from tests.plugins.matrix_families import DEEP, FAMILIES, family_in
from tests.plugins.matrix_run import run_cell
from tests.plugins.omni_qwen2_5_omni import fixed_noise
from tests.plugins.test_hidden_states import LAYERS, expect, submit
from tests.support import omni_engine
from tests.support.ar_driver import plain_prompt
from tests.support.close_calls import Comparison
from tests.support.csm_reference import assert_spoken, csm_reference_of, speak, tiny_csm, turn
from tests.support.devices import HungDevice
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from tests.support.omni_engine import OmniEngine
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import PROMPTS, TOKENS, TextEngine, TextReference, write_text_model

pytestmark = pytest.mark.thorough

TP2, TP4 = RankLayout(2), RankLayout(4)
PP2, PP3, PP4 = RankLayout(pipeline=2), RankLayout(pipeline=3), RankLayout(pipeline=4)
BOTH = RankLayout(2, 2)
PRESSURE: Mapping[str, Mapping[str, object]] = {
    "calm": {},
    "few blocks": {"num_blocks": 16, "max_num_batched_tokens": 7, "max_in_flight": 3},
    "not cached, far ahead": {"prefix_cache": False, "max_in_flight": 8, "graph_chunk_sizes": (8, 16)},
}
"""Of a text stage with blocks of 4 tokens."""


def of(stage: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {f"{stage}.{name}": value for name, value in settings.items()}


TEXTS = [
    ("window", TP4, "not cached, far ahead"),
    ("moe", PP3, "few blocks"),
    ("deep", PP4, "not cached, far ahead"),
    ("moe", TP2, "few blocks"),
    ("tied", BOTH, "calm"),
    *(
        (kind, layout, pressure)
        for kind in ("tied", "untied", "moe", "window")
        for layout in (TP2, TP4, PP2, PP3, BOTH)
        for pressure in PRESSURE
    ),
]


@pytest.mark.parametrize(("kind", "layout", "pressure"), few(3, dict.fromkeys(TEXTS), SLOW), ids=str)
def test_texts_are_those_of_transformers(kind: str, layout: RankLayout, pressure: str, tmp_path: Path) -> None:
    reference, cut = TextReference(tmp_path, kind), CutStages(layout)
    settings = of("text", {"block_size": 4, **PRESSURE[pressure]})
    engine = TextEngine(reference.folder, settings, change=cut.change, graphs=True)
    recorders = [engine.submit(str(n), PROMPTS[n], max_tokens=TOKENS) for n in range(len(PROMPTS))]
    engine.run()
    for index, recorder in enumerate(recorders):
        assert recorder.tokens == reference.answer(index)
    assert (engine.engine.counters()["text"]["preemptions"] > 0) == (pressure == "few blocks")
    cut.end()
    engine.close()


@pytest.mark.plants_faults
def test_a_step_that_hangs_fails_the_requests_of_the_stage(tmp_path: Path) -> None:
    write_text_model(tmp_path, "tied")
    device, cut, failed = HungDevice(), CutStages(TP2, step_seconds=5.0), list[OmniError]()
    engine = TextEngine(tmp_path, of("text", {"block_size": 4}), device, change=cut.change)

    def take(output: EngineOutput) -> None:
        if isinstance(output, RequestFailed):
            failed.append(output.error)

    inputs = {"text": [Payload(plain_prompt(PROMPTS[1]))]}
    engine.engine.submit(EngineRequest("0", frozenset({"text"}), inputs), take)
    for _ in range(20):
        engine.tick()
        device.clock += 1.0
    assert "rank 0 of 2 has not completed a step in 5 s" in str(failed[0])
    engine.close()


@pytest.mark.parametrize(
    ("layout", "pressure"),
    few(
        1,
        [(TP2, "few blocks"), (BOTH, "few blocks"), (TP4, "not cached, far ahead"), (TP2, "not cached, far ahead")],
        SLOW,
    ),
    ids=str,
)
def test_texts_of_divided_experts_are_those_of_transformers(layout: RankLayout, pressure: str, tmp_path: Path) -> None:
    reference, cut = TextReference(tmp_path, "moe"), CutStages(layout, expert_parallel=True)
    settings = of("text", {"block_size": 4, **PRESSURE[pressure]})
    engine = TextEngine(reference.folder, settings, change=cut.change, graphs=True)
    recorders = [engine.submit(str(n), PROMPTS[n], max_tokens=TOKENS) for n in range(len(PROMPTS))]
    engine.run()
    for index, recorder in enumerate(recorders):
        assert recorder.tokens == reference.answer(index)
    assert (engine.engine.counters()["text"]["preemptions"] > 0) == (pressure == "few blocks")
    assert held_experts(cut, "text") == {8 // layout.tensor}
    cut.end()
    engine.close()


def held_experts(cut: CutStages, stage: str) -> set[int]:
    """The numbers of experts that the mixtures of a stage's ranks hold."""
    runners = (cut.started[stage].leader, *cut.started[stage].followers)
    mixtures = [m for runner in runners for m in runner._model.modules() if isinstance(m, SparseMoE)]
    return {mixture.experts_down.shape[0] for mixture in mixtures}


@pytest.mark.parametrize(
    ("kind", "layout", "pressure"),
    few(
        1,
        [
            ("moe", PP3, "few blocks"),
            ("moe", TP2, "few blocks"),
            ("tied", TP4, "calm"),
            ("moe", TP4, "not cached, far ahead"),
            ("tied", PP2, "not cached, far ahead"),
            ("untied", BOTH, "few blocks"),
        ],
        SLOW,
    ),
    ids=str,
)
def test_hidden_states_are_those_of_transformers(kind: str, layout: RankLayout, pressure: str, tmp_path: Path) -> None:
    reference, cut = TextReference(tmp_path, kind), CutStages(layout)
    settings = of("text", {"block_size": 4, "hidden_layers": LAYERS, **PRESSURE[pressure]})
    engine = TextEngine(reference.folder, settings, change=cut.change, graphs=True)
    recorders = [submit(engine, str(n), PROMPTS[n], max_tokens=9) for n in range(6)]
    engine.run()
    for prompt, recorder in zip(PROMPTS, recorders, strict=False):
        expect(reference.model, prompt, recorder)
    cut.end()
    engine.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut matrix")


def cell(asked: str, in_flight: int, *, few_blocks: bool, cached: bool = True) -> Cell:
    return Cell(in_flight, few_blocks=few_blocks, tiny_budget=few_blocks, cached=cached, captured=True, asked=asked)


CELLS = [
    ("text", TP2, cell("all together", 4, few_blocks=True)),
    ("text", PP2, cell("all together", 4, few_blocks=True)),
    ("deep text", PP4, cell("all together", 4, few_blocks=True)),
    ("deep text", PP3, cell("prompt logprobs", 2, few_blocks=True)),
    ("text", PP2, cell("JSON schema, penalty, logprobs", 2, few_blocks=False)),
    ("qwen3_omni", TP2, cell("talker, all together", 4, few_blocks=True)),
    ("qwen3_omni", PP2, cell("talker, all together", 2, few_blocks=True)),
    ("text", TP4, cell("prompt logprobs", 1, few_blocks=True)),
    ("text", TP2, cell("JSON schema, penalty, logprobs", 2, few_blocks=False)),
]


@pytest.mark.parametrize(
    ("name", "layout", "cell"),
    few(
        4,
        dict.fromkeys(
            [
                *CELLS,
                *(
                    (name, layout, one)
                    for families, layouts in ((FAMILIES, (TP2, TP4, PP2, BOTH)), (DEEP, (PP3, PP4)))
                    for name, family in families.items()
                    for layout in layouts
                    for one in covering(family.asked)
                ),
            ]
        ),
        SLOW,
    ),
    ids=str,
)
def test_batched_requests_equal_requests_alone(folder: Path, name: str, layout: RankLayout, cell: Cell) -> None:
    """The matrix, on ranks: requests join, leave and are preempted, and in few blocks of the talker its frames are replayed."""
    family = family_in(folder, name)
    # A talker has fewer layers than there are layer ranges.
    played = run_cell(family, cell, CutStages(layout, {family.writer} if name in DEEP else None))
    if cell.asked == "talker, all together" and cell.few_blocks:
        assert all(played.preemptions(family).values()), "the talker is preempted too"


DIVIDED = [
    cell("talker, all together", 4, few_blocks=True),
    cell("prompt logprobs", 1, few_blocks=False),
    *covering(FAMILIES["qwen3_omni"].asked),
]


@pytest.mark.parametrize("cell", few(1, dict.fromkeys(DIVIDED), SLOW), ids=str)
def test_requests_of_divided_experts_equal_requests_alone(folder: Path, cell: Cell) -> None:
    run_cell(family_in(folder, "qwen3_omni"), cell, CutStages(2, expert_parallel=True))


@pytest.mark.parametrize("by_expert", [False, True])
@pytest.mark.parametrize(
    ("shape", "layout", "layers", "settings"),
    # In two processes: tests/omni/process/test_cut_models.py.
    few(
        0,
        [
            # The hidden states for the talker pass through the ranks between.
            ("other sizes", PP2, (3, 1), {"thinker.max_num_batched_tokens": 9}),
            ("other sizes", TP4, (), {}),
            ("other sizes", PP3, (1, 2, 1), {}),
            ("as written", TP2, (), {}),
            ("as written", PP2, (), {}),
            ("other sizes", BOTH, (), {"thinker.max_num_batched_tokens": 9, "talker.max_num_seqs": 2}),
            ("other sizes", TP2, (), {"thinker.max_num_batched_tokens": 9, "talker.max_num_seqs": 2}),
            ("as written", TP4, (), {"thinker.max_in_flight": 8, "talker.max_in_flight": 8}),
            ("as written", PP2, (), {"thinker.max_in_flight": 8, "talker.max_in_flight": 8}),
        ],
        SLOW,
    ),
    ids=str,
)
def test_cut_qwen3_omni_equals_the_whole_model(
    shape: str, layout: RankLayout, layers: tuple[int, ...], settings: Mapping[str, object], by_expert: bool
) -> None:
    """Layers are those of the thinker. The talker has two, and the other one 6 experts, which four ranks do not divide: it is
    whole then."""
    experts = {"thinker": 8, "talker": 6} if shape == "other sizes" else {"thinker": 4, "talker": 4}
    names = {"thinker"}
    if layout.pipeline <= 2 and not (by_expert and experts["talker"] % layout.tensor):
        names.add("talker")
    cut = CutStages(layout, names, expert_parallel=by_expert, layers={"thinker": layers})
    comparison = Comparison()
    engine = OmniEngine(tiny_checkpoint(**omni_engine.SHAPES[shape]), settings, change=cut.change, graphs=True)
    results = engine.run(omni_engine.CHATS, [0, 2, 5, 9, 14])
    assert cut.started.keys() == names
    for stage in names:
        assert held_experts(cut, stage) == {experts[stage] // layout.tensor if by_expert else experts[stage]}
    cut.end()
    engine.close()
    omni_engine.assert_all_same(results, omni_engine.answers_alone(shape), comparison)
    comparison.assert_rare()


@pytest.mark.parametrize(
    ("shape", "layout"),
    few(
        1,
        [
            ("other sizes", TP2),
            ("other sizes", PP3),
            *(("other sizes", layout) for layout in (TP4, PP2, BOTH)),
            *(("as written", layout) for layout in (TP2, PP2)),
        ],
        SLOW,
    ),
    ids=str,
)
def test_cut_qwen2_5_omni_equals_the_whole_model(shape: str, layout: RankLayout) -> None:
    """Its talker is conditioned by vectors, which rank 0 alone receives."""
    cut, comparison = CutStages(layout), Comparison()
    settings = {**fixed_noise.STREAMED, "thinker.max_in_flight": 3, "talker.max_in_flight": 3, "talker.max_num_seqs": 3}
    folder = tiny_folder(**fixed_noise.SHAPES[shape])
    engine = fixed_noise.FixedNoiseEngine(folder, settings, LateDevice(layout.size), change=cut.change, graphs=True)
    results = engine.run_simulated(fixed_noise.CHATS, within=40)
    assert cut.started.keys() == {"thinker", "talker"}
    cut.end()
    engine.close()
    omni_engine.assert_all_same(results, fixed_noise.answers_alone(shape, whole=False), comparison)
    comparison.assert_rare()


WARM: Mapping[str, Any] = {"temperature": 0.9, "top_k": 10, "code_temperature": 0.9, "code_top_k": 10, "seed": 4}
TURNS = [
    speak("hello", frames=30),
    speak(turn("user", "how are you", 0.3, 1), turn("assistant", "well", 0.5, 2), "and you", frames=11),
    speak(turn("user", "who", 0.12, 3), "me", voice="1", frames=20, **WARM),
]


@pytest.mark.parametrize(
    ("layout", "settings"),
    few(
        1,
        [
            *((layout, {"num_blocks": 18, "max_num_batched_tokens": 9, "max_in_flight": 4}) for layout in (PP3, TP2)),
            *((layout, {}) for layout in (TP4, TP2, PP2, PP3, BOTH)),
        ],
        SLOW,
    ),
    ids=str,
)
def test_cut_csm_speaks_as_transformers_does(layout: RankLayout, settings: Mapping[str, object]) -> None:
    cut, stage = CutStages(layout), of("backbone", {"block_size": 4, **settings})
    engine = OmniEngine(tiny_csm(), stage, LateDevice(layout.size), change=cut.change, graphs=True)
    for asked, result in zip(TURNS, engine.run_simulated(TURNS), strict=True):
        assert_spoken(result, csm_reference_of(tiny_csm()).speech(asked))
    assert (engine.engine.counters()["backbone"]["preemptions"] > 0) == bool(settings)
    cut.end()
    engine.close()


@pytest.mark.parametrize("layout", few(0, [PP2, TP2, TP4, BOTH], SLOW), ids=str)
def test_a_family_of_another_distribution_is_cut(
    layout: RankLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its code depends on ranks."""
    home = REPOSITORY / "examples" / "family"
    monkeypatch.syspath_prepend(home)
    plugins = load_plugins([*own_entry_points("ar", "local"), *entry_points_of(home / "pyproject.toml")])
    write = locate(plugins.families["pocket"].tiny or "", "tiny")
    assert callable(write)
    write(tmp_path, seed=0)
    cut, texts = CutStages(layout), ["once upon a time", "a", "the quick brown fox jumps over it", "grüße, 你好"]
    with engine_for(tmp_path, plugins=plugins) as whole:
        expected = [whole.answer(text).tokens for text in texts]
    with engine_for(tmp_path, plugins=plugins, change=cut.change, graphs=True) as engine:
        assert [result.tokens for result in engine.run(texts)] == expected
        cut.end()
    assert len(set(map(tuple, expected))) == len(texts)


@pytest.mark.parametrize("layout", [TP2, PP2], ids=str)
def test_each_rank_measures_its_largest_steps_alone(layout: RankLayout, tmp_path: Path) -> None:
    """With bounded memory, before the ranks agree on a number of pages: no step of these is sent to another rank."""
    reference, cut = TextReference(tmp_path, "untied"), CutStages(layout)
    settings = of("text", {"max_num_seqs": 4, "max_model_len": 64})
    engine = TextEngine(reference.folder, settings, change=cut.change, memory_bytes=2**28)
    recorder = engine.submit("0", PROMPTS[1], max_tokens=TOKENS)
    engine.run()
    assert recorder.tokens == reference.answer(1)
    cut.end()
    engine.close()


@pytest.mark.parametrize("layout", few(1, [PP2, TP2], SLOW), ids=str)
def test_a_model_that_does_not_fit_one_device_runs_on_two(layout: RankLayout, tmp_path: Path) -> None:
    reference, cut = TextReference(tmp_path, "deep"), CutStages(layout)
    settings = of("text", {"max_num_seqs": 1, "max_model_len": 64, "max_num_batched_tokens": 4, "block_size": 4})
    bound = 720_000
    with pytest.raises(ConfigError, match=r"engine\.memory_bytes: the stages need \S+ bytes and may take 720,000"):
        TextEngine(reference.folder, settings, memory_bytes=bound)
    engine = TextEngine(reference.folder, settings, change=cut.change, memory_bytes=bound)
    recorders = [engine.submit(str(index), PROMPTS[index], max_tokens=TOKENS) for index in range(4)]
    engine.run()
    assert [recorder.tokens for recorder in recorders] == [reference.answer(index) for index in range(4)]
    cut.end()
    engine.close()
