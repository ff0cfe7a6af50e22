"""Captured steps: padded with null rows, and the same tokens as uncaptured ones."""

import logging
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from omni.device import Event, Graph, Phase, Stream
from omni.device.cpu import CpuDevice
from omni.sampling import HostRules
from omni_ar.model import FrameEnd
from omni_ar.options import ArOptions
from omni_ar.run.phases import HAND_OVER
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import CountingDevice
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import NothingTwice, SmallText, greedy

MODEL = SmallText(payload=True, emits_tokens=True)
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(2 + 3 * index)] for index in range(5)]


def run(
    sizes: tuple[int, ...] | None, requests: int, sampling: Mapping[str, object] = {}
) -> tuple[ArDriver, CountingDevice]:
    device = CountingDevice()
    options = ArOptions(max_num_seqs=5, block_size=4, graph_batch_sizes=sizes, graph_chunk_sizes=())
    driver = ArDriver(MODEL, device, options, captured=True)
    device.launches.clear()
    prompts = [plain_prompt(prompt, payload_positions=np.array([0])) for prompt in PROMPTS[:requests]]
    driver.ask_all(prompts, sampling, max_tokens=9)
    driver.run()
    return driver, device


@pytest.mark.parametrize(("sizes", "padded"), [((3,), 3), ((4,), 4), ((1, 5), 5)])
def test_a_batch_is_padded_to_the_next_size_and_gives_the_same(sizes: tuple[int, ...], padded: int):
    driver, device = run(sizes, 3)
    assert driver.all_tokens(3) == [greedy(MODEL, prompt, 9) for prompt in PROMPTS[:3]]
    # One step has the prompts; the eight that follow only decode.
    assert device.replays == {f"ar-decode-{padded}": 8, f"ar-sample-{padded}": 9}
    assert device.launches["run_forward"] == 1
    assert not device.launches["sample_rows"]


def test_hidden_states_of_a_padded_batch_are_those_of_an_uncaptured_one():
    (captured, _), (eager, device) = run((4,), 3), run((), 3)
    assert not device.replays
    for driver in (captured, eager):
        driver.gather_all()
    for index in range(3):
        for first, second in zip(captured.hidden(str(index)), eager.hidden(str(index)), strict=True):
            assert torch.equal(first, second)


def test_a_batch_of_more_rows_runs_uncaptured_and_that_is_said_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        driver, device = run((2,), 4)
    assert driver.all_tokens(4) == [greedy(MODEL, prompt, 9) for prompt in PROMPTS[:4]]
    assert not device.replays
    assert [record.getMessage() for record in caplog.records] == [
        "ar: batches of more than 2 rows run uncaptured: raise ar.graph_batch_sizes"
    ]


def test_every_way_of_sampling_is_in_the_captured_step():
    asked = {
        "temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 3.0, "seed": 4, "repetition_penalty": 1.3,
        "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {3: 2.0}, "min_tokens": 3,
        "stop_token_ids": (5, 6), "suppress_token_ids": (1,), "bad_words_ids": ((2,), (7, 9)),
    }  # fmt: skip
    (captured, device), (eager, _) = run((4,), 4, asked), run((), 4, asked)
    assert device.replays["ar-sample-4"]
    assert not device.launches["sample_rows"]
    assert captured.all_tokens(4) == eager.all_tokens(4)
    assert captured.tokens("0") != run((), 1)[0].tokens("0")


def test_host_processors_sample_uncaptured_behind_a_captured_forward(caplog: pytest.LogCaptureFixture):
    device = CountingDevice()
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=2, block_size=4), captured=True)
    device.launches.clear()
    driver.ask("0", PROMPTS[1], rules=HostRules(host_processors=(NothingTwice(61, most=6),)), max_tokens=6)
    with caplog.at_level(logging.WARNING):
        while not driver.ends:
            driver.tick()
    said = ["ar: sampling steps with logits processors or structured outputs run uncaptured"]
    assert [record.getMessage() for record in caplog.records] == said
    assert len(driver.tokens("0")) == 6
    assert device.replays["ar-decode-1"] == 5
    assert device.launches["sample_rows"] >= 5


def test_frames_and_conditioning_of_a_padded_batch():
    model, device = SmallCodec(), CountingDevice()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=4, block_size=3, graph_batch_sizes=(4,)), captured=True)
    prompts = [codec_prompt([1, 2, 3][: 1 + index], [9, 8, 7][: 1 + index]) for index in range(3)]
    texts = [[index + step for step in range(4)] for index in range(3)]
    for index, prompt in enumerate(prompts):
        driver.speak(str(index), prompt, texts[index], pad=2, max_tokens=8)
    driver.run()
    assert device.replays["ar-codes-4"] >= 8
    driver.gather_all()
    for index, prompt in enumerate(prompts):
        assert driver.frames(str(index)) == spoken(model, prompt, texts[index], 2, 8)[:-1]


class OrderDevice(CpuDevice):
    """order: of replayed graphs, and of phases that are launched outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self._replaying = False

    def replay(self, stream: Stream, graph: Graph) -> None:
        self.order.append(graph.name.removeprefix("ar-").rstrip("-0123456789"))
        self._replaying = True
        super().replay(stream, graph)
        self._replaying = False

    def moment(self, stream: Stream, name: str) -> None:
        self.order.append(name)
        super().moment(stream, name)

    def record(self, stream: Stream) -> Event:
        self.order.append("record")
        return super().record(stream)

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if not self._replaying:
            self.order.append(phase.__name__)
        super().launch(stream, phase, *buffers)


def order_of(model: SmallCodec, captured: bool) -> list[str]:
    """Of a request of four tokens."""
    device = OrderDevice()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=4), captured=captured)
    driver.speak("0", codec_prompt([1, 2], [3, 4]), [5, 6], pad=2, max_tokens=4)
    while "0" not in driver.ends:
        driver.tick()
    return device.order


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_are_handed_over_before_codes_are_predicted(captured: bool):
    """On a GPU, test_gpu_graphs.py sees their event complete meanwhile."""
    order = order_of(SmallCodec(), captured)
    first, *rest = ["sample"] if captured else ["sample_rows", "accept_tokens", "post_update"]
    codes = "codes" if captured else "predict_codes"
    handed = [*rest, HAND_OVER, "record"]
    behind = [order[at + 1 : at + 2 + len(handed)] for at, name in enumerate(order) if name == first]
    assert behind == [[*handed, codes]] * 4


class EndingCodec(SmallCodec):
    frame_end = FrameEnd(36, 3)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_wait_for_codes_that_may_end_the_request(captured: bool):
    order = order_of(EndingCodec(), captured)
    codes = "codes" if captured else "predict_codes"
    behind = [order[at + 1 : at + 3] for at, name in enumerate(order) if name == codes]
    assert behind == [[HAND_OVER, "record"]] * 4
