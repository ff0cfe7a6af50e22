"""Tokens, codes of all groups and waveforms in float32, eager and captured, batched and padded: those of the CPU for each alone.

The CPU's results of each alone are those of transformers, except for requests that are sampled, and for sound that is denoised in
windows. On the CPU a captured step is the list of its launches, so the cases run there too; most of them on a GPU only.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.plugins.omni_qwen2_5_omni import fixed_noise
from tests.support import omni_engine
from tests.support.close_calls import Comparison
from tests.support.omni_engine import Expected, OmniEngine, assert_all_same
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder

Settings = Mapping[str, object]

AR = ("thinker", "talker")
TOGETHER, ONE_BY_ONE = [0] * 5, [0, 3, 5, 9, 14]


def both(**options: object) -> dict[str, object]:
    """Of thinker and talker."""
    return {f"{stage}.{name}": value for stage in AR for name, value in options.items()}


FEW_GRAPHS = both(max_num_seqs=5, graph_chunk_sizes=(32, 512)) | {
    "audio_encoder.graph_lengths": (64,),
    "vision_encoder.graph_lengths": (32,),
}
"""Laid under the others: capturing takes most of a test's time."""
SYNCHRONOUS, AHEAD = both(max_in_flight=1), both(max_in_flight=4)
CHUNKED = both(max_num_batched_tokens=7, graph_chunk_sizes=(7,))
PADDED = both(graph_batch_sizes=(5,), graph_chunk_sizes=(512,))
FEW_ROWS, FEW_BLOCKS = both(max_num_seqs=2), both(block_size=4)

CASES: dict[str, tuple[Settings | None, list[int]]] = {
    "as shipped": (None, TOGETHER),
    "few rows": (FEW_ROWS, ONE_BY_ONE),
    "padded": (PADDED, ONE_BY_ONE),
    "synchronous": (SYNCHRONOUS, ONE_BY_ONE),
    "four ahead": (AHEAD, ONE_BY_ONE),
    "chunked, four ahead": (CHUNKED | AHEAD, ONE_BY_ONE),
    "synchronous, chunked, few blocks": (SYNCHRONOUS | CHUNKED | FEW_BLOCKS, TOGETHER),
    "four ahead, few blocks": (AHEAD | FEW_BLOCKS, TOGETHER),
    "chunked, four ahead, few blocks": (CHUNKED | AHEAD | FEW_BLOCKS, TOGETHER),
    "plain attention": (both(attention_backend="torch"), ONE_BY_ONE),
}
EAGER = ("as shipped", "few rows", "synchronous, chunked, few blocks")


def of_last_stage(name: str, case: str) -> dict[str, object]:
    """Settings of the stage that gives sound, and of the number of blocks."""
    vocoder: dict[str, object] = {"max_num_seqs": 5}
    blocks: dict[str, object] = {}
    if name == "code2wav":
        if case == "padded":
            vocoder["graph_batch_sizes"] = (5,)
        if "few blocks" in case:
            vocoder["max_num_seqs"], blocks = 1, both(num_blocks=36 if "chunked" in case else 24)
    else:
        vocoder["graph_batch_sizes"] = {"few rows": (1,), "padded": (5,)}.get(case, (2, 5))
        if case == "few rows":
            vocoder["max_num_seqs"] = 1
        if "few blocks" in case:
            blocks = {"thinker.num_blocks": 19, "talker.num_blocks": 24}
    return blocks | {f"{name}.{option}": value for option, value in vocoder.items()}


def settings(name: str, case: str) -> dict[str, object]:
    own = CASES[case][0]
    return {} if own is None else {**FEW_GRAPHS, **of_last_stage(name, case), **own}


def engine_3(shape: str, case: str, device: str, graphs: bool) -> OmniEngine:
    folder = tiny_checkpoint(**omni_engine.SHAPES[shape])
    return OmniEngine(folder, settings("code2wav", case), device, graphs=graphs)


def engine_2_5(sound: Settings) -> Callable[[str, str, str, bool], OmniEngine]:
    def make(shape: str, case: str, device: str, graphs: bool) -> OmniEngine:
        folder = tiny_folder(**fixed_noise.SHAPES[shape])
        return fixed_noise.FixedNoiseEngine(folder, {**settings("token2wav", case), **sound}, device, graphs=graphs)

    return make


FAMILIES: dict[str, tuple[Callable[[str, str, str, bool], OmniEngine], Callable[[str], list[Expected]]]] = {
    "qwen3_omni": (engine_3, omni_engine.answers_alone),
    "qwen2_5_omni, whole": (engine_2_5(fixed_noise.WHOLE), lambda shape: fixed_noise.answers_alone(shape, whole=True)),
    "qwen2_5_omni, streamed": (
        engine_2_5(fixed_noise.STREAMED),
        lambda shape: fixed_noise.answers_alone(shape, whole=False),
    ),
}
ON_THE_CPU = {
    ("qwen3_omni", "as written", "padded", True): [pytest.mark.slow],
    ("qwen2_5_omni, whole", "as written", "chunked, four ahead, few blocks", True): [pytest.mark.slow],
    ("qwen2_5_omni, streamed", "other sizes", "padded", True): [pytest.mark.slow],
}
"""Elsewhere in the suite the CPU runs such requests under all kinds of settings."""


def on_devices() -> list[Any]:
    cases: list[Any] = [pytest.param("cpu", *case, marks=marks) for case, marks in ON_THE_CPU.items()]
    for family, shape, case in itertools.product(FAMILIES, ("as written", "other sizes"), CASES):
        for graphs in (True, False) if case in EAGER else (True,):
            cases.append(pytest.param("cuda", family, shape, case, graphs, marks=pytest.mark.gpu))
    return cases


@pytest.mark.parametrize(("device", "family", "shape", "case", "graphs"), on_devices())
def test_tokens_and_speech_equal_those_of_the_cpu(
    device: str, family: str, shape: str, case: str, graphs: bool
) -> None:
    make, answers = FAMILIES[family]
    engine = make(shape, case, device, graphs)
    chats = omni_engine.CHATS if family == "qwen3_omni" else fixed_noise.CHATS

    results = engine.run(chats, CASES[case][1])

    comparison = Comparison()
    assert_all_same(results, answers(shape), comparison)
    comparison.assert_rare()
    counters = engine.engine.counters()
    for stage in AR:
        assert (counters[stage]["preemptions"] > 0) == ("few blocks" in case), f"{stage}: {counters[stage]}"


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("family", ["qwen3_omni", "qwen2_5_omni, whole"])
def test_a_second_time_from_the_prefix_cache(family: str, graphs: bool) -> None:
    """In few blocks, seven tokens a step."""
    make, answers = FAMILIES[family]
    omni = make("as written", "synchronous, chunked, few blocks", "cuda", graphs)
    chats, comparison = omni_engine.CHATS if family == "qwen3_omni" else fixed_noise.CHATS, Comparison()
    for again in (False, True):
        before = omni.engine.counters()
        assert_all_same(omni.run(chats), answers("as written"), comparison)
        after = omni.engine.counters()
        for stage in AR if family == "qwen3_omni" else ("thinker",):
            assert not again or after[stage]["cached_tokens"] > before[stage]["cached_tokens"]
            assert after[stage]["preemptions"]
    if family == "qwen3_omni":
        assert omni.engine.counters()["talker"]["spilled_rows"]
    comparison.assert_rare()


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("chunks", [(1, 1), (2, 9)], ids=str)
def test_samples_do_not_depend_on_the_chunks(chunks: tuple[int, int], graphs: bool) -> None:
    folder = tiny_checkpoint(**omni_engine.SHAPES["as written"])
    first, later = chunks
    cuts: list[Settings] = [{"code2wav.first_chunk_frames": first, "code2wav.chunk_frames": later}, {}]

    cut, shipped = (OmniEngine(folder, one, "cuda", graphs=graphs).answer(omni_engine.CHATS[1]) for one in cuts)

    assert cut.frames == shipped.frames
    assert np.abs(cut.wave - shipped.wave).max() < omni_engine.TOLERANCE * np.abs(shipped.wave).max()
