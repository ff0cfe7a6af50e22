"""On a CUDA device, in float32, eager and captured: the CPU's tokens, log-probabilities and hidden states, however far steps run
ahead."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from omni.device import open_device
from omni_ar.inputs import TokenHidden
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import full_float32
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.small_text import SmallText

pytestmark = pytest.mark.gpu

CAPTURED = pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
PROMPTS = [[5, 9, 2, 44, 17, 3, 3, 8], [1, 60, 33], [7, 7, 12, 50, 22], [4]]
SAMPLING: list[dict[str, object]] = [
    {},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "logprobs": 3},
    {"temperature": 1.1, "seed": 5, "logit_bias": {3: 2.0, 9: -50.0}, "bad_words_ids": ((44,), (17, 3)), "logprobs": 0},
    {
        "allowed_token_ids": tuple(range(0, 61, 3)),
        "min_tokens": 6,
        "stop_token_ids": (0, 3, 6, 9),
        "prompt_logprobs": 2,
    },
    {"temperature": 1.0, "seed": 6, "suppress_token_ids": (5, 7), "stop_token_ids": (1, 2), "frequency_penalty": 1.0},
]


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with full_float32():
        yield


def driver_of(model: ArModel, rows: int, device: str, ahead: int, little: bool, captured: bool) -> ArDriver:
    options = ArOptions(max_num_seqs=rows, block_size=2, max_model_len=24, max_in_flight=ahead)
    options = replace(options, num_blocks=14, max_num_batched_tokens=5) if little else options
    return ArDriver(model, open_device(device), options, captured=captured)


def run_text(device: str, ahead: int, little: bool, captured: bool = False) -> ArDriver:
    model = SmallText(payload=True, emits_tokens=True).to(device)
    driver = driver_of(model, 4, device, ahead, little, captured)
    for index, sampling in enumerate(SAMPLING):
        prompt = plain_prompt(PROMPTS[index % 4], payload_positions=np.array([0]))
        driver.ask(str(index), prompt, sampling, max_tokens=15, order=(9 - index, index))
        driver.tick()
    driver.finish(len(SAMPLING))
    if little:
        assert driver.counter("preemptions")
    return driver


@pytest.mark.parametrize("ahead", [1, 2, 4, 8])
@pytest.mark.parametrize("little", [False, True], ids=["enough blocks", "few blocks"])
@CAPTURED
def test_text_equals_that_of_the_cpu(ahead: int, little: bool, captured: bool):
    expected, given = run_text("cpu", 1, little=False), run_text("cuda", ahead, little, captured)
    for index in range(len(SAMPLING)):
        name = str(index)
        assert given.tokens(name) == expected.tokens(name)
        assert given.done(name).reason == expected.done(name).reason
        for on_cuda, on_cpu in zip(_hidden(given, name), _hidden(expected, name), strict=True):
            assert (on_cuda.cpu() - on_cpu).abs().max() < 1e-4 * on_cpu.abs().max()
        for of_prompt in (False, True):
            scores, wanted = (_scores(driver, name, of_prompt) for driver in (given, expected))
            assert scores.keys() == wanted.keys()
            for place, (ids, logprobs) in wanted.items():
                assert scores[place][0] == ids
                assert np.abs(scores[place][1] - logprobs).max() < 1e-4


def _hidden(driver: ArDriver, name: str) -> list[torch.Tensor]:
    return [row for meta, row in driver.rows[name] if isinstance(meta, TokenHidden)]


def _scores(driver: ArDriver, name: str, of_prompt: bool) -> dict[int, tuple[list[int], np.ndarray]]:
    chunks = [chunk for chunk in driver.logprobs(name) if chunk.prompt == of_prompt]
    return {c.first + row: (c.ids[row].tolist(), c.logprobs[row]) for c in chunks for row in range(len(c.ids))}


def run_codec(device: str, ahead: int, little: bool, captured: bool = False) -> ArDriver:
    driver = driver_of(SmallCodec().to(device), 3, device, ahead, little, captured)
    for index in range(6):
        sampling = {"temperature": 0.9, "seed": index, "repetition_penalty": 1.2} if index % 2 else {}
        prompt = codec_prompt([index + 1, 2, 3], [4, 5, 6 + index])
        asked = {"max_tokens": 15, "stop_token_ids": (3,), **sampling}
        driver.speak(str(index), prompt, [7, 8, 9], asked, pad=1, order=(9 - index, index))
        driver.tick()
    driver.finish(6)
    return driver


@pytest.mark.parametrize("ahead", [1, 2, 4, 8])
@pytest.mark.parametrize("little", [False, True], ids=["enough blocks", "few blocks"])
@CAPTURED
def test_frames_equal_those_of_the_cpu(ahead: int, little: bool, captured: bool):
    expected, given = run_codec("cpu", 1, little=False), run_codec("cuda", ahead, little, captured)
    for index in range(6):
        assert given.frames(str(index)) == expected.frames(str(index))
        assert given.tokens(str(index)) == expected.tokens(str(index))
