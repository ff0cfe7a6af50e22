"""A stage that is cut across two GPUs gives what it gives on one."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from omni import Omni, SamplingParams
from tests.support.engines import plugins_of
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


def texts(model: Path, settings: Mapping[str, object]) -> list[str]:
    plugins = plugins_of("ar", "local", "cuda_ipc", "shm", "text")
    overrides = {"engine.process": "process", **settings}
    with Omni(model, device="cuda:0", dtype="float32", plugins=plugins, overrides=overrides) as omni:
        results = omni.generate(PROMPTS * 4, stream=False, sampling=ASKED)
        return [result.text for result in results]


@pytest.mark.parametrize("way", ["tensor_parallel", "pipeline_parallel"])
@pytest.mark.parametrize(
    "pressure", [{}, {"text.num_blocks": 40, "text.block_size": 4, "text.max_in_flight": 4}], ids=["calm", "few blocks"]
)
def test_texts_are_those_of_one_gpu(model: Path, way: str, pressure: Mapping[str, object]) -> None:
    cut = {f"text.{way}": 2, "text.place": "cuda:0,cuda:1"}
    assert texts(model, {**pressure, **cut}) == texts(model, pressure)
