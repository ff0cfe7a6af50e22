"""Captured steps on a CUDA device."""

import time

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.device import open_device
from omni_ar.attention import TorchPagedAttention, TritonPagedAttention
from omni_ar.model import Codes, DrawCode
from omni_ar.options import ArOptions
from omni_ar.run.step import SampledStep
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import CountingCuda
from tests.support.patience import PATIENCE_SECONDS
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.small_text import SmallText, greedy

pytestmark = pytest.mark.gpu

PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(2 + 3 * index)] for index in range(5)]
_CYCLES = 400_000_000
"""A fifth of a second of the device."""


class SlowCodec(SmallCodec):
    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        torch.cuda._sleep(_CYCLES)
        return super().predict_codes(hidden_RD, code0_R, draw)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_are_handed_over_while_codes_are_still_predicted(captured: bool, monkeypatch: pytest.MonkeyPatch):
    model = SlowCodec().to("cuda")
    driver = ArDriver(model, open_device("cuda"), ArOptions(max_num_seqs=2, block_size=4), captured=captured)
    driver.speak("warm", codec_prompt([1, 2], [3, 4]), [5], pad=2, max_tokens=3)  # kernels are compiled meanwhile
    while "warm" not in driver.ends:
        driver.tick()
    driver.release_lent()
    driver.device.synchronize()
    steps: list[SampledStep] = []
    runner = driver.worker._runner
    launch = runner.sample_tokens

    def sample_tokens(context):
        steps.append(launch(context))
        return steps[-1]

    monkeypatch.setattr(runner, "sample_tokens", sample_tokens)
    driver.speak("0", codec_prompt([1, 2], [3, 4]), [5, 6], pad=2, max_tokens=4)
    early = 0
    while len(steps) < 3:
        seen = len(steps)
        driver.tick()
        if len(steps) > seen:
            tokens, deadline = steps[-1].tokens, time.monotonic() + PATIENCE_SECONDS
            assert tokens is not None
            while not tokens.ready.done():
                assert time.monotonic() < deadline
            codes = steps[-1].payload.codes
            assert codes is not None
            early += not codes.ready.done() and not steps[-1].end.done()
    assert early == 3
    driver.device.synchronize()


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize(
    ("budget", "blocks", "sizes"), [(2048, None, None), (2048, None, (4,)), (9, None, (1, 3, 4)), (9, 16, None)]
)
def test_captured_steps_give_the_results_of_full_recomputation_on_the_cpu(
    budget: int, blocks: int | None, sizes: tuple[int, ...] | None, backend: str
):
    """By themselves, several at once, in chunks, beside rows that decode, behind shared prefixes, and after a preemption."""
    model, device = SmallText(payload=True), CountingCuda()
    options = ArOptions(
        max_num_seqs=4,
        block_size=4,
        num_blocks=blocks,
        max_num_batched_tokens=budget,
        graph_batch_sizes=sizes,
        graph_chunk_sizes=(4, 9) if budget == 9 else None,
    )
    attention = TritonPagedAttention(device) if backend == "triton" else TorchPagedAttention()
    driver = ArDriver(SmallText(payload=True).to("cuda"), device, options, captured=True, backend=attention)
    device.launches.clear()
    prompts = [[*PROMPTS[4], *prompt, *prompt] for prompt in PROMPTS]
    for index, prompt in enumerate(prompts):
        wanted = np.arange(0, len(prompt), 2)
        driver.ask(str(index), plain_prompt(prompt, payload_positions=wanted), max_tokens=12)
        if index > 1:
            driver.tick()
    driver.finish(len(prompts))
    assert driver.all_tokens(5) == [greedy(model, prompt, 12) for prompt in prompts]
    for index, prompt in enumerate(prompts):
        (hidden_nD,) = driver.hidden(str(index))
        torch.testing.assert_close(hidden_nD.cpu(), model.whole(prompt)[::2], rtol=1e-4, atol=1e-4)
    assert {name.split("-")[1] for name in device.replays} >= {"prompts", "mixed", "decode"}
    assert not device.launches["run_forward"]
    assert (driver.counter("preemptions") > 0) == (blocks is not None)
