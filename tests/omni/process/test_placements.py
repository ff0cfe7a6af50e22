"""Where stages run changes no result: tiny models in one process, in several, with replicas, with each connector."""

import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from omni import Omni, OmniError, Result, SamplingParams
from omni.api.arguments import GenerateArguments, Messages
from tests.support.csm_reference import tiny_csm
from tests.support.echo_family import eventually
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, few
from tests.support.tiny_omni import SHAPE, assert_like, held, picture, sound, tiny_plugins, user
from tests.support.tiny_qwen2_5_omni import tiny_folder

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
Settings = Mapping[str, object]
Request = tuple[Messages, GenerateArguments]


@dataclass(frozen=True)
class Model:
    """stages, edges: in order. speaking: the stages of speech, which replicas have. blocks: of each autoregressive stage under
    pressure, of 4 tokens each."""

    folder: Callable[[], Path]
    stages: Sequence[str]
    edges: Sequence[str]
    speaking: Sequence[str]
    requests: Callable[[], Sequence[Request]]
    blocks: Mapping[str, int]


def _lengths(seed: int, **tokens: int) -> dict[str, SamplingParams]:
    return {stage: SamplingParams(max_tokens=count, seed=seed) for stage, count in tokens.items()}


def _omni_requests(*noisy: str) -> Sequence[Request]:
    """noisy: further stages that draw noise."""
    chats = [user("what is it", picture(), sound()), user("hello"), user("hear", sound(1)), user(picture(2), "see")]
    return [
        (
            chat,
            {
                "sampling": _lengths(number + 1, thinker=4 + number, talker=9 + 2 * number)
                | {stage: SamplingParams(seed=number + 1) for stage in noisy}
            },
        )
        for number, chat in enumerate(chats)
    ]


def _csm_requests() -> Sequence[Request]:
    texts = ["hello there", "what is it", "bye", "once more"]
    return [
        (user(text), {"sampling": _lengths(number + 1, backbone=6 + 2 * number)}) for number, text in enumerate(texts)
    ]


_ENCODERS = ("audio_encoder", "vision_encoder")
_INTO_THINKER = ("audio_encoder-thinker", "vision_encoder-thinker")
MODELS = {
    "qwen3": Model(
        lambda: tiny_checkpoint(3, **SHAPE),
        (*_ENCODERS, "thinker", "talker", "code2wav"),
        (*_INTO_THINKER, "thinker-talker", "talker-code2wav"),
        ("talker", "code2wav"),
        _omni_requests,
        {"thinker": 13, "talker": 14},
    ),
    "qwen2.5": Model(
        tiny_folder,
        (*_ENCODERS, "thinker", "talker", "token2wav"),
        (*_INTO_THINKER, "thinker-talker", "talker-token2wav"),
        ("talker", "token2wav"),
        partial(_omni_requests, "token2wav"),
        {"thinker": 17, "talker": 16},
    ),
    "csm": Model(
        tiny_csm,
        ("audio_encoder", "backbone", "vocoder"),
        ("audio_encoder-backbone", "backbone-vocoder"),
        ("vocoder",),
        _csm_requests,
        {"backbone": 10},
    ),
}


def placed(model: Model, placement: str) -> dict[str, object]:
    """Settings of a placement, by its name."""
    everywhere = {f"{stage}.place": f"cpu/{number}" for number, stage in enumerate(model.stages)}
    through_shm: dict[str, object] = {f"edges.{edge}.connector": "shm" for edge in model.edges}
    speech_apart = dict.fromkeys((f"{stage}.place" for stage in model.speaking), "cpu/speech")
    settings: dict[str, Settings] = {
        "thread": {"engine.process": "thread"},
        "process": {"engine.process": "process"},
        "shm": {"engine.process": "thread", **through_shm},
        "speech apart": speech_apart,
        "a process each": everywhere,
        "a process each, shm": {**everywhere, **through_shm},
        "replicas": dict.fromkeys((f"{stage}.place" for stage in model.speaking), "cpu/2,cpu/3"),
    }
    return dict(settings[placement])


def opened(model: Model, settings: Settings) -> Omni:
    return Omni(model.folder(), device="cpu", plugins=tiny_plugins(), overrides=dict(settings))


@cache
def expected(name: str) -> Sequence[Result]:
    """Each request alone, with the engine in a thread."""
    with opened(MODELS[name], placed(MODELS[name], "thread")) as omni:
        return [answer(omni, request) for request in MODELS[name].requests()]


def answer(omni: Omni, request: Request) -> Result:
    messages, arguments = request
    result = omni.generate(messages, stream=False, **arguments)
    assert isinstance(result, Result)
    return result


def assert_same(result: Result, other: Result, exactly: bool = True) -> None:
    """exactly: whether samples are equal bit by bit: in batches of other sizes, sums have other orders."""
    assert (result.text, result.tokens, result.usage) == (other.text, other.tokens, other.usage)
    assert other.audio is not None
    assert result.audio is not None
    assert len(other.audio)
    if exactly:
        assert torch.equal(result.audio, other.audio)
    else:
        assert_like(result.audio, other.audio)


def at_once(omni: Omni, requests: Sequence[Request]) -> list[Result]:
    results: dict[int, Result] = {}

    def ask(number: int) -> None:
        results[number] = answer(omni, requests[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return [results[number] for number in range(len(requests))]


def assert_nothing_held(omni: Omni) -> None:
    assert eventually(lambda: omni.idle), held(omni)
    assert held(omni) == {}


PLACEMENTS = ("speech apart", "shm", "process", "a process each", "a process each, shm", "replicas")
CASES: list[Any] = [(name, placement) for name in MODELS for placement in PLACEMENTS]


@pytest.mark.parametrize(("name", "placement"), few(2, CASES, SLOW))
def test_results_are_the_same_wherever_stages_run(name: str, placement: str):
    model = MODELS[name]
    requests = model.requests()
    with opened(model, placed(model, placement)) as omni:
        for request, alone in zip(requests, expected(name), strict=True):
            assert_same(answer(omni, request), alone)
        for result, alone in zip(at_once(omni, requests), expected(name), strict=True):
            assert_same(result, alone, exactly=False)
        assert_nothing_held(omni)


def pressed(model: Model) -> dict[str, object]:
    """Few rows, blocks and tokens a step, no prefix cache, one payload under way on an edge between autoregressive stages."""
    settings: dict[str, object] = {f"edges.{edge}.credit": 1 for edge in model.edges[-2:]}
    for stage, blocks in model.blocks.items():
        settings |= {f"{stage}.block_size": 4, f"{stage}.num_blocks": blocks, f"{stage}.max_model_len": 4 * blocks - 4}
        settings |= {f"{stage}.max_num_seqs": 3, f"{stage}.max_num_batched_tokens": 7, f"{stage}.prefix_cache": False}
    return settings


@pytest.mark.parametrize(("name", "placement"), few(0, CASES, SLOW))
def test_results_under_pressure_are_the_same_wherever_stages_run(name: str, placement: str):
    """The requests all at once, twice each."""
    model = MODELS[name]
    requests = [*model.requests(), *model.requests()]
    with opened(model, {**placed(model, placement), **pressed(model)}) as omni:
        for result, alone in zip(at_once(omni, requests), [*expected(name), *expected(name)], strict=True):
            assert_same(result, alone, exactly=False)
        counters = omni.counters()
        assert sum(counters[stage]["preemptions"] for stage in model.blocks) > 0
        assert_nothing_held(omni)


EACH = "a process each, shm"
PRESSURES: list[Any] = [
    (EACH, credit, active, pool) for credit in (1, 4) for active in (8, 1) for pool in (65_536, 2**20)
]


@pytest.mark.parametrize(
    ("placement", "credit", "active", "pool"), few(1, [("speech apart", 1, 8, 65_536), *PRESSURES], SLOW)
)
def test_aborts_under_pressure_change_no_other_result(placement: str, credit: int, active: int, pool: int):
    """Few blocks, little credit, payloads larger than the pool: requests that are aborted at any moment leave no memory held."""
    model = MODELS["qwen3"]
    edges = {f"edges.{edge}.pool_bytes": pool for edge in model.edges}
    few_blocks = {
        "thinker.num_blocks": 24, "thinker.max_model_len": 256, "thinker.prefix_cache": False,
        "talker.num_blocks": 24, "talker.max_model_len": 256,
    }  # fmt: skip
    settings = {**placed(model, placement), **edges, **few_blocks, "engine.max_active_requests": active}
    settings |= {"edges.thinker-talker.credit": credit, "edges.talker-code2wav.credit": credit}
    requests = model.requests()
    chance, rounds = random.Random(f"{credit} {active} {pool}"), 1 if pool == 65_536 else 3
    asked = 4 if pool == 65_536 else 8
    with opened(model, settings) as omni:
        for _ in range(rounds):
            results: dict[int, Result] = {}

            def ask(number: int, leaves: int | None, omni: Omni = omni, results: dict[int, Result] = results) -> None:
                if leaves is None:
                    results[number] = answer(omni, requests[number % len(requests)])
                    return
                messages, arguments = requests[number % len(requests)]
                with omni.generate(messages, **arguments) as stream:
                    for _, _ in zip(range(leaves), stream, strict=False):
                        pass

            leaving = [chance.choice((None, 0, chance.randrange(1, 12))) for _ in range(asked)]
            threads = [threading.Thread(target=ask, args=case) for case in enumerate(leaving)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            assert sorted(results) == [number for number, leaves in enumerate(leaving) if leaves is None]
            for number, result in results.items():
                assert_same(result, expected("qwen3")[number % len(requests)], exactly=False)
            assert_nothing_held(omni)
        try:
            assert_same(answer(omni, requests[0]), expected("qwen3")[0])
        except OmniError as error:
            error.add_note(str(omni.counters()))
            raise
