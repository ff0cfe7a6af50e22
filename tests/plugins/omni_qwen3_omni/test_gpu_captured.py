"""Tokens, codes of all groups and waveforms in float32, eager and captured, batched and padded: those of the CPU for each alone.

On the CPU a captured step is the list of its launches, so the cases run there too; most of them on a GPU only.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.close_calls import Comparison
from tests.support.omni_engine import CHATS, SHAPES, OmniEngine, answers_alone, assert_all_same
from tests.support.reference import tiny_checkpoint

Settings = Mapping[str, object]

TOGETHER, ONE_BY_ONE = [0] * len(CHATS), [0, 3, 5, 9, 14]


def both(**options: object) -> dict[str, object]:
    """Of thinker and talker."""
    return {f"{stage}.{name}": value for stage in ("thinker", "talker") for name, value in options.items()}


FEW_GRAPHS = both(max_num_seqs=5, graph_chunk_sizes=(32, 512)) | {
    "code2wav.max_num_seqs": 5,
    "audio_encoder.graph_lengths": (64,),
    "vision_encoder.graph_lengths": (32,),
}
"""Laid under the others: capturing takes most of a test's time."""
TWO_ROWS = both(max_num_seqs=2)
PADDED = both(graph_batch_sizes=(5,), graph_chunk_sizes=(512,)) | {"code2wav.graph_batch_sizes": (5,)}
SYNCHRONOUS, AHEAD = both(max_in_flight=1), both(max_in_flight=4)
FEW_BLOCKS = both(num_blocks=36, block_size=4, max_num_batched_tokens=7, graph_chunk_sizes=(7,)) | {
    "code2wav.max_num_seqs": 1
}
PLAIN_ATTENTION = both(attention_backend="torch")

CASES: dict[str, tuple[Settings, bool, list[int]]] = {
    "eager, as shipped": ({}, False, TOGETHER),
    "eager, two rows": (FEW_GRAPHS | TWO_ROWS, False, ONE_BY_ONE),
    "captured, as shipped": ({}, True, TOGETHER),
    "captured, two rows": (FEW_GRAPHS | TWO_ROWS, True, ONE_BY_ONE),
    "captured, padded": (FEW_GRAPHS | PADDED, True, ONE_BY_ONE),
    "captured, synchronous": (FEW_GRAPHS | SYNCHRONOUS, True, ONE_BY_ONE),
    "captured, four ahead": (FEW_GRAPHS | AHEAD, True, ONE_BY_ONE),
    "captured, synchronous, few blocks": (FEW_GRAPHS | SYNCHRONOUS | FEW_BLOCKS, True, TOGETHER),
    "captured, four ahead, few blocks": (FEW_GRAPHS | AHEAD | FEW_BLOCKS, True, TOGETHER),
    "captured, plain attention": (FEW_GRAPHS | PLAIN_ATTENTION, True, ONE_BY_ONE),
}
ON_THE_CPU = {("captured, padded", "as written")}
"""Elsewhere in the suite the CPU runs such requests under all kinds of settings."""


def on_devices() -> list[Any]:
    cases: list[Any] = []
    for shape in SHAPES:
        for case in CASES:
            if (case, shape) in ON_THE_CPU:
                cases.append(pytest.param("cpu", shape, case, id=f"cpu, {shape}, {case}"))
            cases.append(pytest.param("cuda", shape, case, id=f"cuda, {shape}, {case}", marks=pytest.mark.gpu))
    return cases


@pytest.mark.parametrize(("device", "shape", "case"), on_devices())
def test_everything_is_the_cpu_s(device: str, shape: str, case: str) -> None:
    settings, graphs, arrivals = CASES[case]
    engine = OmniEngine(tiny_checkpoint(**SHAPES[shape]), settings, device, graphs=graphs)

    results = engine.run(CHATS, arrivals)

    comparison = Comparison()
    assert_all_same(results, answers_alone(shape), comparison)
    comparison.assert_rare()
    if case.endswith("few blocks"):
        counters = engine.engine.counters()
        assert counters["thinker"]["preemptions"]
        assert counters["talker"]["preemptions"]


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
def test_a_second_time_from_the_prefix_cache(graphs: bool) -> None:
    """In few blocks, seven tokens a step, one row at the vocoder."""
    small = both(num_blocks=36, block_size=4, max_num_batched_tokens=7, graph_chunk_sizes=(7,))
    pressure = FEW_GRAPHS | small | {"code2wav.max_num_seqs": 1}
    omni = OmniEngine(tiny_checkpoint(**SHAPES["as written"]), pressure, "cuda", graphs=graphs)
    comparison = Comparison()
    for again in (False, True):
        before = omni.engine.counters()
        assert_all_same(omni.run(CHATS), answers_alone("as written"), comparison)
        after = omni.engine.counters()
        for stage in ("thinker", "talker"):
            assert not again or after[stage]["cached_tokens"] > before[stage]["cached_tokens"]
            assert after[stage]["preemptions"]
    assert omni.engine.counters()["talker"]["spilled_rows"]
    comparison.assert_rare()
