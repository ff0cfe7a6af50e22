"""Models whose stages are cut across processes: the results of whole stages, and what happens when the process of a rank ends."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from omni import ConfigError, Omni, SamplingParams
from omni.errors import LostPeerError
from tests.omni.process.engines import alive, children, group_of, kill, pids_of
from tests.omni.process.test_placements import (
    MODELS,
    Model,
    assert_nothing_held,
    assert_same,
    at_once,
    opened,
    placed,
)
from tests.support.echo_family import eventually
from tests.support.plugins import plugins_of
from tests.support.reference import tiny_checkpoint
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, text_of
from tests.support.tiny_qwen2_5_omni import tiny_folder
from tests.support.tiny_text import write_chat_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

FOLDERS = {
    "qwen3": lambda: tiny_checkpoint(3, heads=4, kv_heads=2, **SHAPE),
    "qwen2.5": lambda: tiny_folder(heads=4, kv_heads=2, talker_heads=4, talker_kv_heads=2),
    "csm": MODELS["csm"].folder,
}


def cut(stage: str, *places: str) -> dict[str, object]:
    return {f"{stage}.tensor_parallel": len(places), f"{stage}.place": ",".join(places)}


def pipelined(stage: str, *places: str, tensor: int = 1) -> dict[str, object]:
    ranges = len(places) // tensor
    return cut(stage, *places) | {f"{stage}.tensor_parallel": tensor, f"{stage}.pipeline_parallel": ranges}


Cutting = Callable[..., dict[str, object]]
TWO = ("cpu", "cpu/2")
BOUNDED = {"engine.memory_bytes": 2**32, "audio_encoder.cache_bytes": 2**22, "vision_encoder.cache_bytes": 2**22}
CUTS: list[tuple[str, Mapping[str, object]]] = [
    ("qwen3", {**pipelined("thinker", *TWO), **pipelined("talker", *TWO), **BOUNDED}),
    ("qwen3", {**cut("thinker", *TWO), "talker.place": "cpu/2"}),
    ("qwen3", {**cut("thinker", *TWO), **cut("talker", *TWO), **BOUNDED}),
    ("qwen3", {**pipelined("thinker", *TWO, "cpu/3", "cpu/4", tensor=2), **cut("talker", *TWO)}),
    ("qwen2.5", {**pipelined("thinker", *TWO, "cpu/3"), "talker.place": "cpu/2"}),
    ("qwen2.5", pipelined("talker", *TWO)),
    ("csm", {**pipelined("backbone", "cpu/2", "cpu/3"), "vocoder.place": "cpu/3"}),
    ("qwen3", {**cut("thinker", *TWO, "cpu/3", "cpu/4"), "edges.thinker-talker.connector": "shm"}),
    ("qwen2.5", {**cut("talker", *TWO), "thinker.place": "cpu/2"}),
    ("qwen2.5", {**cut("thinker", *TWO), **cut("talker", *TWO)}),
    ("csm", {**cut("backbone", "cpu/2", "cpu/3"), "vocoder.place": "cpu/3"}),
    (
        "qwen3",
        {
            **cut("thinker", *TWO),
            "thinker.expert_parallel": True,
            **cut("talker", *TWO),
            "talker.expert_parallel": "true",
        },
    ),
]


@pytest.mark.parametrize(("name", "settings"), few(1, CUTS, SLOW))
def test_results_are_those_of_whole_stages(name: str, settings: Mapping[str, object]) -> None:
    """With pictures and sounds, one after the other and together."""
    model: Model = replace(MODELS[name], folder=FOLDERS[name])
    requests = model.requests()[:2]
    with opened(model, placed(model, "thread")) as omni:
        expected = [omni.generate(messages, stream=False, **arguments) for messages, arguments in requests]
    with opened(model, {**settings, "engine.process": "process"}) as omni:
        for result, alone in zip(at_once(omni, requests), expected, strict=True):
            assert_same(result, alone, exactly=False)
        messages, arguments = requests[0]
        assert_same(omni.generate(messages, stream=False, **arguments), expected[0])
        assert_nothing_held(omni)


LARGE = {
    "text.max_num_seqs": 2,
    "text.max_num_batched_tokens": 64,
    "engine.dtype": "float32",
    "engine.process": "process",
}
"""A model of eight layers takes 4.7 MB so, each of two ranks 3.0 or 3.4 MB."""
MOST = 4_000_000


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("large"), layers=8)


@pytest.mark.parametrize("cut_in_two", few(1, [pipelined, cut], SLOW))
def test_a_model_that_does_not_fit_one_process_runs_in_two(large_model: Path, cut_in_two: Cutting) -> None:
    """Processes on the CPU have equal parts of its `memory_bytes`, as each GPU has its own."""
    asked = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    prompts = ["hello", "tell me more", "and then?"]

    def answers(**settings: object) -> list[str]:
        given = {**LARGE, **settings}
        with Omni(large_model, device="cpu", plugins=plugins_of("ar", "local", "shm", "text"), overrides=given) as omni:
            streams = [omni.generate(prompt, sampling=asked) for prompt in prompts]
            return [text_of(stream) for stream in streams]

    remedy = r"raise it, place stages on other devices \(<stage>\.place\), cut one across several \(<stage>\.tensor_parallel\)"
    problem = rf"^engine\.memory_bytes: the stages need 4,\S+ bytes and may take 4,000,000; {remedy}"
    with pytest.raises(ConfigError, match=problem):
        answers(**{"engine.memory_bytes": MOST})
    assert answers(**{"engine.memory_bytes": 2 * MOST, **cut_in_two("text", *TWO)}) == answers()


LEADER, FOLLOWER = TWO
ASKED = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected_text(text_model: Path) -> str:
    with Omni(text_model, device="cpu", plugins=plugins_of("ar", "local", "text")) as omni:
        return omni.generate("hello", stream=False, sampling=ASKED).text


@pytest.fixture
def omni(text_model: Path, request: pytest.FixtureRequest) -> Iterator[Omni]:
    """A text model on two ranks, cut by the test's parameter. None of its resources is left at the end."""
    files, before = open_files(), children()
    settings = {**request.param("text", *TWO), "engine.restart_seconds": 0}
    plugins = plugins_of("ar", "local", "shm", "text")
    with Omni(text_model, device="cpu", plugins=plugins, overrides=settings) as omni:
        started = set(pids_of(omni).values())
        yield omni
        started |= set(pids_of(omni).values())
    assert eventually(lambda: not any(map(alive, started)))
    assert eventually(lambda: children() <= before)
    assert eventually(lambda: open_files() <= files)


ENDS = [(cut, FOLLOWER), (pipelined, FOLLOWER), (cut, LEADER), (pipelined, LEADER)]


@pytest.mark.parametrize(("omni", "place"), few(1, ENDS, SLOW), indirect=["omni"])
def test_a_stage_whose_rank_ends_starts_again(omni: Omni, expected_text: str, place: str) -> None:
    """A request with outputs so far fails, and one without starts again."""
    assert omni.generate("hello", stream=False, sampling=ASKED).text == expected_text  # its parameters are checked now
    before = dict(pids_of(omni))
    begun = omni.generate("tell me more", sampling=LONG)
    text = next(begun).text
    os.kill(before[FOLLOWER], signal.SIGSTOP)  # so that there are no further outputs
    fresh = omni.generate("hello", sampling=ASKED)
    engine = group_of(omni)._supervisor.by_place[LEADER].engine
    assert eventually(lambda: engine.requests == 2)
    kill(omni, place)
    named = f"rank {TWO.index(place)} of 2 of stage 'text'"
    problem = rf"{named} \({place}\) ended: its process {before[place]} was killed by SIGKILL"
    with pytest.raises(LostPeerError, match=f"^stage 'text' failed while running: {problem}$") as caught:
        list(begun)
    assert caught.value.rank == named
    assert text
    assert text_of(fresh) == expected_text
    after = pids_of(omni)
    assert all(after[at] != before[at] for at in TWO), "both ranks have started again"
    assert omni.generate("hello", stream=False, sampling=ASKED).text == expected_text
    assert_nothing_held(omni)
