"""What a step never does: run past a request's limit, take in more rows than there is room for, emit what nobody asked for."""

import pytest
import torch
from torch import Tensor

from omni.device import Stream
from omni.device.cpu import CpuDevice
from omni.errors import InputError
from omni.sampling import SamplingParams
from omni_ar.kernels.step.state import RowState, StepBuffers
from omni_ar.model import Batch
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.source import LocalTokens, TokenSource
from tests.stages.omni_ar.row_feeder import MODEL, feeder
from tests.support.ar_driver import ArDriver
from tests.support.devices import QueuedDevice
from tests.support.small_text import SmallText, greedy

PROMPT = [5, 9, 2, 44, 17, 3]


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_no_step_is_launched_past_a_token_limit(ahead: int, tokens: int):
    device = QueuedDevice()
    driver = ArDriver(SmallText(), device, ArOptions(max_num_seqs=2, block_size=4, max_in_flight=ahead))
    driver.ask("0", PROMPT, max_tokens=tokens)
    for _ in range(tokens):
        for _ in range(ahead + 1):
            driver.tick()  # as many steps as may be in flight, of which the host has read none
        device.synchronize()
    driver.run()
    assert driver.tokens("0") == greedy(SmallText(), PROMPT, tokens)
    assert driver.counter("steps") == tokens, "the prompt's, then one for each token but the last"
    assert driver.counter("decode_tokens") == tokens - 1


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"suppress_token_ids": (99,)}, "suppress_token_ids"),
        ({"logprobs": 62}, "logprobs"),
        ({"code_top_k": 1}, "code_top_k"),
    ],
)
def test_what_no_request_could_ask_for_is_refused_before_there_is_one(asked: dict[str, object], named: str):
    worker = ArDriver(SmallText()).worker
    worker.check(SamplingParams(), "sampling")
    with pytest.raises(InputError) as caught:
        worker.check(SamplingParams(**asked), "sampling")
    assert caught.value.field == f"sampling.{named}"


class Watched(SmallText):
    """sinks: of each forward, the rows that decode and whether it stores hidden states for others."""

    def __init__(self) -> None:
        super().__init__(payload=True, emits_tokens=True)
        self.sinks: list[tuple[int, bool]] = []

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        self.sinks.append((batch.attention.num_decode, batch.payload is not None))
        return super().forward(x_TD, batch)


def test_a_chunk_whose_hidden_states_nobody_wants_stores_none():
    """Wanted is that of the prompt's last token, and of each after it."""
    model = Watched()
    driver = ArDriver(model, options=ArOptions(max_num_seqs=4, block_size=4, max_num_batched_tokens=4))
    driver.ask("0", PROMPT, max_tokens=3)
    driver.gather_all()
    assert model.sinks == [(0, False), (0, True), (1, True), (1, True)]


class Allocating(CpuDevice):
    """sizes: of all that was allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, ...]] = []

    def zeros(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.sizes.append(tuple(size))
        return super().zeros(size, dtype)


def test_captured_prompts_of_all_sizes_share_the_memory_of_the_largest():
    device, model = Allocating(), SmallText()
    ArDriver(model, device, ArOptions(max_num_seqs=4, block_size=4, graph_chunk_sizes=(7, 19, 29)), captured=True)
    width = model.shape.hidden_width
    assert device.sizes.count((4 + 29, width)) == 2, "what the forward reads, and what it leaves"
    assert not {(4 + 7, width), (4 + 19, width)} & set(device.sizes)


class LateZeros(CpuDevice):
    """Zeroes on a stream that no other waits for, as a CUDA device does: before `synchronize` there is anything."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Tensor] = []

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._late.append(torch.full(shape, -(2**30), dtype=dtype))
        return self._late[-1]

    def synchronize(self) -> None:
        super().synchronize()
        with torch.inference_mode():
            while self._late:
                self._late.pop().zero_()


def test_what_is_read_at_start_is_zeroed_before():
    feed = feeder(MODEL, LateZeros(), captured=True, graph_chunk_sizes=(8,))
    feed.open("0", PROMPT, 4)
    feed.end("0")
    feed.check("0")


class Elsewhere(LocalTokens):
    """Leaves no logits here, as a source whose tokens come over a wire."""

    gives_logits = False


def test_log_probabilities_of_tokens_that_come_from_elsewhere_are_refused():
    model, device = SmallText(), CpuDevice()
    options = ArOptions(max_num_seqs=2, block_size=4)
    limits = Limits.of("text", options, model.shape)

    def source(stream: Stream, state: RowState, buffers: StepBuffers) -> TokenSource:
        return Elsewhere("text", device, stream, model, state, buffers, limits)

    driver = ArDriver(model, device, options, source)
    driver.ask("scored", PROMPT, max_tokens=3, logprobs=1)
    driver.ask("plain", PROMPT, max_tokens=3)
    driver.run()
    assert str(driver.error("scored")).startswith("sampling.text.logprobs: is given, and text gets its tokens without")
    assert driver.tokens("plain") == greedy(model, PROMPT, 3)
