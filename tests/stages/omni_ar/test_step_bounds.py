"""Bounds of a step: a request's limit, the number of rows, and the outputs that requests asked for."""

from typing import Annotated, get_origin, get_type_hints

import pytest
import torch
from msgspec.structs import asdict, replace
from torch import Tensor
from torch.overrides import TorchFunctionMode

from omni.device.cpu import CpuDevice
from omni.errors import InputError
from omni.payload.copier import copy_rows
from omni.sampling import PARAMETERS, HostRules, SamplingParams, StopVerdict
from omni.testing.simulation.late import QueuedDevice
from omni_ar.kernels.sampling.state import SamplingState
from omni_ar.model import ArModel, Batch
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.plan import StepPlan
from omni_ar.run.profile import EVERY_PARAMETER, run_largest_steps
from omni_ar.run.source import LocalTokens
from omni_ar.run.step import StepContext
from tests.stages.omni_ar.row_feeder import MODEL, feeder
from tests.support.ar_driver import ArDriver
from tests.support.small_codec import SmallCodec
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
            driver.tick()  # as many steps as may be in flight, and the host has read none of them
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
def test_parameters_are_checked_against_the_stage_without_a_request(asked: dict[str, object], named: str):
    worker = ArDriver(SmallText()).worker
    worker.check(SamplingParams(), "sampling")
    with pytest.raises(InputError) as caught:
        worker.check(replace(SamplingParams(), **asked), "sampling")
    assert caught.value.field == f"sampling.{named}"


class Watched(SmallText):
    """sinks: of each forward, the rows that decode and whether it stores hidden states for others."""

    def __init__(self) -> None:
        super().__init__(payload=True, emits_tokens=True)
        self.sinks: list[tuple[int, bool]] = []

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        self.sinks.append((batch.attention.num_decode, batch.payload is not None))
        return super().forward(x_TD, batch)


def test_a_chunk_whose_hidden_states_no_consumer_needs_stores_none():
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


def test_buffers_are_zeroed_before_the_first_step_reads_them():
    feed = feeder(MODEL, LateZeros(), captured=True, graph_chunk_sizes=(8,))
    feed.open("0", PROMPT, 4)
    feed.end("0")
    feed.check("0")


class Elsewhere(LocalTokens):
    """Leaves no logits here, as a source that receives its tokens."""

    gives_logits = False


def test_log_probabilities_of_tokens_that_come_from_elsewhere_are_refused():
    model = SmallText()
    driver = ArDriver(model, source=Elsewhere)
    driver.ask("scored", PROMPT, max_tokens=3, logprobs=1)
    driver.ask("plain", PROMPT, max_tokens=3)
    driver.run()
    assert str(driver.error("scored")).startswith(
        "sampling.text.logprobs: is given, and text receives its tokens without"
    )
    assert driver.tokens("plain") == greedy(model, PROMPT, 3)


PROMPTS = [[5, 9, 2, 44, 17, 3, 3, 8], [1, 60, 33]]


class StopAt:
    """Stops at a token, as a matcher of texts does at a string that one token completes."""

    def __init__(self, token: int) -> None:
        self._token = token

    def push(self, token: int) -> StopVerdict:
        return StopVerdict(int(token == self._token), token == self._token)


def test_tokens_after_a_stop_string_are_dropped_before_log_probs_come():
    """Stop strings are matched on the host: its steps in flight go on, and the request's end waits for its log-probabilities."""
    device, model = QueuedDevice(), SmallText()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=4, max_in_flight=4))
    said = greedy(model, PROMPTS[0], 8)
    stop = said[2]
    assert stop not in said[:2]
    driver.ask("0", PROMPTS[0], rules=HostRules(stops=StopAt(stop)), max_tokens=8, logprobs=1)
    for _ in range(4):
        driver.tick()
    assert driver.held["steps"] == 4
    with torch.inference_mode():
        device.run({stream.name for stream in device.streams if not stream.name.endswith("-scores")})
    driver.tick()
    assert not driver.ends, "its log-probabilities are not here"
    assert driver.tokens("0") == said[:2]
    driver.run()
    assert driver.tokens("0") == said[:2]
    assert driver.done("0").withheld == (stop,)
    assert driver.done("0").counts["tokens"] == 3
    assert driver.counter("discarded_tokens") == 1


@pytest.mark.parametrize(("ahead", "blocks"), [(2, 12), (4, 11)])
def test_a_request_that_lost_its_blocks_goes_on_when_its_steps_are_read(ahead: int, blocks: int):
    """It is asked whether it could start while they are unread, and must be asked again."""
    device, model, tokens = QueuedDevice(), SmallText(), 14
    options = ArOptions(max_num_seqs=2, block_size=2, max_in_flight=ahead, num_blocks=blocks, max_model_len=24)
    driver = ArDriver(model, device, options)
    driver.ask_all(PROMPTS, max_tokens=tokens)
    for _ in range(50):
        for _ in range(ahead + 1):
            driver.tick()
        device.synchronize()
    assert driver.counter("preemptions") > 0
    assert driver.all_tokens(2) == [greedy(model, prompt, tokens) for prompt in PROMPTS]
    assert not driver.held


def test_a_tick_that_reads_a_token_says_that_it_moved():
    """Else the engine would take the stage for one that waits for the device, and sleep."""
    device, model = QueuedDevice(), SmallText()
    driver = ArDriver(model, device)
    driver.ask("0", PROMPTS[0], max_tokens=1)
    assert driver.tick(), "it launched a step"
    assert not driver.tick()
    device.synchronize()
    assert driver.tick(), "it read the last token, and there is nothing else to do"
    assert driver.tokens("0") == greedy(model, PROMPTS[0], 1)


class HoldAll:
    """Every token may be part of a stop string that is not complete yet."""

    def __init__(self) -> None:
        self._said = 0

    def push(self, token: int) -> StopVerdict:
        self._said += 1
        return StopVerdict(self._said, False)


def test_tokens_that_were_held_back_go_with_their_request():
    """Its record may live on in a queue; the tokens that it held back have no reader, and must not."""
    driver = ArDriver(SmallText(payload=True, emits_tokens=True))
    driver.ask("0", PROMPTS[0], rules=HostRules(stops=HoldAll()), max_tokens=8)
    for _ in range(4):
        driver.tick()
    request = driver.worker.requests["0"]
    messages = [message for withheld in request.withheld for message in withheld.messages]
    assert len(messages) > len(request.withheld) > 1, "tokens, and hidden states of those before"
    driver.abort("0")
    driver.tick()
    assert not request.withheld
    assert all(message.free for message in messages)
    driver.release_lent()
    driver.run()


def measured(model: ArModel, options: ArOptions, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The plans of all steps that were run."""
    driver = ArDriver(model, options=options)
    runner, plans = driver.worker._runner, []
    execute = runner.execute_model

    def kept(plan: StepPlan) -> StepContext:
        plans.append(plan)
        return execute(plan)

    monkeypatch.setattr(runner, "execute_model", kept)
    with torch.inference_mode():
        run_largest_steps(runner, model.shape, Limits.of("text", options, model.shape))
    return plans


def test_the_largest_steps_use_every_parameter_that_needs_work():
    hints = get_type_hints(SamplingState, include_extras=True)
    columns = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}
    needing = [name for name, column in columns.items() if column.need and not name.startswith("code_")]
    assert "top_n_sigma" in needing
    given = asdict(EVERY_PARAMETER)
    assert [name for name in needing if given[name] == PARAMETERS[name].off] == []


@pytest.mark.parametrize(("length", "budget"), [(2, 8), (3, 8), (20, 7), (20, 64)])
@pytest.mark.parametrize("payload", [False, True])
def test_rows_are_full_and_chunks_take_the_whole_budget(
    length: int, budget: int, payload: bool, monkeypatch: pytest.MonkeyPatch
):
    options = ArOptions(max_num_seqs=4, block_size=4, max_model_len=length, max_num_batched_tokens=budget)
    decodes, mixed, scored = measured(SmallText(payload=payload), options, monkeypatch)
    assert [request.num_computed_tokens for request in decodes.decodes] == [length - 1] * 4
    assert not decodes.chunks
    longest = max(length - 2, 1)
    assert mixed.chunk_tokens == min(budget, 4 * longest)
    assert len(mixed.decodes) + len(mixed.chunks) == 4
    for chunk in (*mixed.chunks, *scored.chunks):
        assert chunk.start + chunk.length == chunk.request.length == length - 1
        assert chunk.start >= 0
        assert chunk.start or length == 2, "a chunk behind a context needs more than one without"
        assert chunk.request.wants_hidden == payload
    assert scored.chunk_tokens == min(budget, longest)
    assert len(scored.decodes) == 3


def test_prompts_of_other_tokens_than_the_stage_s_are_not_scored(monkeypatch: pytest.MonkeyPatch):
    options = ArOptions(max_num_seqs=2, block_size=4, max_model_len=20)
    assert Limits.of("codec", options, SmallCodec().shape).scored_tokens == 0
    assert len(measured(SmallCodec(), options, monkeypatch)) == 2


class Asked(TorchFunctionMode):
    """copies: whether each conversion was asked not to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[object] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.to:
            self.copies.append((kwargs or {}).get("non_blocking"))
        return func(*args, **(kwargs or {}))


def test_rows_that_come_from_the_host_are_copied_without_waiting():
    """A CPU does not show the wait; the calls of torch do."""
    conditioning, rows = torch.zeros(4, 2), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    with Asked() as asked:
        copy_rows(conditioning, rows, slice(None), torch.tensor([2]), slice(None))
    assert asked.copies == [True]
    assert conditioning.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]
