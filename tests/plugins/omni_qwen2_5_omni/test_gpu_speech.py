"""Tokens, codes and waveforms in float32, eager and captured, batched and padded: those of transformers on the CPU, same noise.

What is sampled, and sound that is denoised in windows, is that of the CPU for each request alone. On the CPU a captured step is the
list of its launches, so the cases run there too; most of them on a GPU only.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.plugins.omni_qwen2_5_omni.heard_omni import CHATS, SHAPES, STREAMED, WHOLE, HeardEngine, answers_alone
from tests.support.close_calls import Comparison
from tests.support.omni_engine import assert_all_same
from tests.support.tiny_qwen2_5_omni import tiny_folder

Settings = Mapping[str, object]

TOGETHER, ONE_BY_ONE = [0] * len(CHATS), [0, 3, 5, 9, 14]


def both(**options: object) -> dict[str, object]:
    """Of thinker and talker."""
    return {f"{stage}.{name}": value for stage in ("thinker", "talker") for name, value in options.items()}


FEW_GRAPHS = both(max_num_seqs=5, graph_chunk_sizes=(32, 512)) | {
    "token2wav.max_num_seqs": 5,
    "token2wav.graph_batch_sizes": (2, 5),
    "audio_encoder.graph_lengths": (64,),
    "vision_encoder.graph_lengths": (32,),
}
"""Laid under the others: capturing takes most of a test's time."""
FEW_ROWS = both(max_num_seqs=2) | {"token2wav.max_num_seqs": 1, "token2wav.graph_batch_sizes": (1,)}
PADDED = both(graph_batch_sizes=(5,), graph_chunk_sizes=(512,)) | {"token2wav.graph_batch_sizes": (5,)}
SYNCHRONOUS, AHEAD = both(max_in_flight=1), both(max_in_flight=4)
CHUNKED = both(max_num_batched_tokens=7, graph_chunk_sizes=(7,))
FEW_BLOCKS = {"thinker.num_blocks": 19, "talker.num_blocks": 24} | both(block_size=4)

CASES: dict[str, tuple[Settings, bool, list[int]]] = {
    "eager, as shipped": ({}, False, TOGETHER),
    "eager, few rows": (FEW_GRAPHS | FEW_ROWS, False, ONE_BY_ONE),
    "eager, chunked, few blocks": (FEW_GRAPHS | CHUNKED | FEW_BLOCKS, False, TOGETHER),
    "captured, as shipped": ({}, True, TOGETHER),
    "captured, few rows": (FEW_GRAPHS | FEW_ROWS, True, ONE_BY_ONE),
    "captured, padded": (FEW_GRAPHS | PADDED, True, ONE_BY_ONE),
    "captured, synchronous": (FEW_GRAPHS | SYNCHRONOUS, True, ONE_BY_ONE),
    "captured, four ahead": (FEW_GRAPHS | AHEAD, True, ONE_BY_ONE),
    "captured, chunked, four ahead": (FEW_GRAPHS | CHUNKED | AHEAD, True, ONE_BY_ONE),
    "captured, four ahead, few blocks": (FEW_GRAPHS | AHEAD | FEW_BLOCKS, True, TOGETHER),
    "captured, chunked, four ahead, few blocks": (FEW_GRAPHS | CHUNKED | AHEAD | FEW_BLOCKS, True, TOGETHER),
    "captured, plain attention": (FEW_GRAPHS | both(attention_backend="torch"), True, ONE_BY_ONE),
}
ON_THE_CPU = {
    ("captured, chunked, four ahead, few blocks", "as written", "whole"),
    ("captured, padded", "other sizes", "streamed"),
}


def on_devices() -> list[Any]:
    cases: list[Any] = []
    for shape in SHAPES:
        for case in CASES:
            for sound in ("whole", "streamed"):
                if (case, shape, sound) in ON_THE_CPU:
                    slow = [pytest.mark.slow] if sound == "streamed" else []
                    cases.append(
                        pytest.param("cpu", shape, case, sound, id=f"cpu, {shape}, {case}, {sound}", marks=slow)
                    )
                marks = [pytest.mark.gpu]
                cases.append(
                    pytest.param("cuda", shape, case, sound, id=f"cuda, {shape}, {case}, {sound}", marks=marks)
                )
    return cases


@pytest.mark.parametrize(("device", "shape", "case", "sound"), on_devices())
def test_everything_is_the_cpu_s(device: str, shape: str, case: str, sound: str) -> None:
    settings, graphs, arrivals = CASES[case]
    whole = sound == "whole"
    given = {**settings, **(WHOLE if whole else STREAMED)}
    engine = HeardEngine(tiny_folder(**SHAPES[shape]), given, device, graphs=graphs)
    results = engine.run(CHATS, arrivals)
    comparison = Comparison()
    assert_all_same(results, answers_alone(shape, whole), comparison)
    comparison.assert_rare()
    counters = engine.engine.counters()
    for stage in ("thinker", "talker"):
        assert (counters[stage]["preemptions"] > 0) == ("few blocks" in case), f"{stage}: {counters[stage]}"


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "captured"])
def test_a_second_time_from_the_prefix_cache(graphs: bool) -> None:
    settings = {**FEW_GRAPHS, **CHUNKED, **FEW_BLOCKS, **FEW_ROWS, **WHOLE}
    engine = HeardEngine(tiny_folder(**SHAPES["as written"]), settings, "cuda", graphs=graphs)
    comparison = Comparison()
    for again in (False, True):
        before = engine.engine.counters()["thinker"]["cached_tokens"]
        assert_all_same(engine.run(CHATS), answers_alone("as written", whole=True), comparison)
        assert not again or engine.engine.counters()["thinker"]["cached_tokens"] > before
    comparison.assert_rare()
