"""A stage that is cut across two GPUs has the results of one GPU."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from omni import Omni, SamplingParams
from tests.omni.process.engines import pids_of
from tests.support.plugins import plugins_of
from tests.support.tiny_text import write_chat_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
PROMPTS = [
    "hello",
    "the blue square and the green one",
    "how many people are in the world",
    "who",
    "tell me more about it",
]
ASKED = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"))


def opened(model: Path, settings: Mapping[str, object]) -> Omni:
    plugins = plugins_of("ar", "local", "cuda_ipc", "shm", "text")
    overrides = {"engine.process": "process", **settings}
    return Omni(model, device="cuda:0", dtype="float32", plugins=plugins, overrides=overrides)


def texts(model: Path, settings: Mapping[str, object]) -> list[str]:
    with opened(model, settings) as omni:
        results = omni.generate(PROMPTS * 4, stream=False, sampling=ASKED)
        return [result.text for result in results]


@pytest.mark.parametrize("way", ["tensor_parallel", "pipeline_parallel"])
@pytest.mark.parametrize(
    "pressure", [{}, {"text.num_blocks": 40, "text.block_size": 4, "text.max_in_flight": 4}], ids=["calm", "few blocks"]
)
def test_texts_are_those_of_one_gpu(model: Path, way: str, pressure: Mapping[str, object]) -> None:
    cut = {f"text.{way}": 2, "text.place": "cuda:0,cuda:1"}
    assert texts(model, {**pressure, **cut}) == texts(model, pressure)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tensor_parallel", "pipeline_parallel"])
@pytest.mark.parametrize("graphs", [True, False], ids=["captured", "eager"])
def test_a_rank_whose_process_is_stopped_is_started_again(model: Path, way: str, graphs: bool) -> None:
    """Rank 0 notices after a minute. The request had no output, so it starts again."""
    cut = {f"text.{way}": 2, "text.place": "cuda:0,cuda:1", "engine.graphs": graphs}
    with opened(model, cut) as omni:
        expected = omni.generate(PROMPTS[1], stream=False, sampling=ASKED).text
        before = dict(pids_of(omni))
        os.kill(before["cuda:1"], signal.SIGSTOP)
        assert omni.generate(PROMPTS[1], stream=False, sampling=ASKED).text == expected
        assert not before.keys() ^ pids_of(omni).keys()
        assert not set(before.values()) & set(pids_of(omni).values())
