"""A model whose encoder and vocoder have `tensor_parallel`: replicas of both, and the results of one process."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from omni import Omni, Result
from tests.omni.process.engines import group_of, pids_of
from tests.omni.process.test_cut_models import FOLDERS, TWO, cut
from tests.omni.process.test_placements import (
    MODELS,
    Request,
    answer,
    assert_nothing_held,
    assert_same,
    opened,
    placed,
)
from tests.support.echo_family import eventually

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

MODEL = replace(MODELS["qwen3"], folder=FOLDERS["qwen3"])
EVERYTHING = ("text", "audio", "codes")
HEARING: list[Request] = [
    (messages, {**arguments, "modalities": EVERYTHING})
    for messages, arguments in (MODEL.requests()[number] for number in (0, 2))
]
REPLICAS = {**cut("audio_encoder", *TWO), **cut("code2wav", "cpu/3", "cpu/2")}
"""The second request finds another replica of each free, while the first is active."""


@pytest.fixture(scope="module")
def expected() -> Iterator[list[Result]]:
    with opened(MODEL, placed(MODEL, "thread")) as omni:
        yield [answer(omni, request) for request in HEARING]


def assert_equal(result: Result, other: Result, exactly: bool = True) -> None:
    assert_same(result, other, exactly)
    assert result.codes is not None
    assert other.codes is not None
    assert torch.equal(result.codes, other.codes)


@pytest.mark.parametrize("cut_thinker", [False, True])
def test_results_of_replicas_are_those_of_one_process(
    expected: list[Result], cut_thinker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = REPLICAS | (cut("thinker", *TWO) if cut_thinker else {})
    with opened(MODEL, settings) as omni:
        why = "is not cut by tensors: 2 replicas of the whole model instead of tensor_parallel=2"
        said = [record.getMessage() for record in caplog.records if "replicas" in record.getMessage()]
        assert said == [f"audio_encoder: kind 'encoder' {why}", f"code2wav: kind 'vocoder' {why}"]
        for request, alone in zip(HEARING, expected, strict=True):
            assert_equal(answer(omni, request), alone)
        assert_nothing_held(omni)
        both_at_once(omni, expected)


def both_at_once(omni: Omni, expected: list[Result]) -> None:
    """The vocoder of one request is stopped until the other request is placed."""
    engines = {place: placed.engine for place, placed in group_of(omni)._supervisor.by_place.items()}
    assert engines["cpu/2"].counters()["audio_encoder"]["encoded"] == 0
    stopped = pids_of(omni)["cpu/3"]
    with ThreadPoolExecutor(len(expected)) as pool:
        os.kill(stopped, signal.SIGSTOP)
        try:
            results = [pool.submit(answer, omni, request) for request in HEARING]
            assert eventually(lambda: [engines[place].requests for place in ("cpu", "cpu/2", "cpu/3")] == [2, 1, 1])
        finally:
            os.kill(stopped, signal.SIGCONT)
        for result, alone in zip(results, expected, strict=True):
            assert_equal(result.result(), alone, exactly=False)
    assert engines["cpu/2"].counters()["audio_encoder"]["encoded"] == 1
    assert_nothing_held(omni)
