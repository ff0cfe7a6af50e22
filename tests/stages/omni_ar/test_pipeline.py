"""A stage with several layer ranges: its results are those of the whole stage, whatever fails at one of the ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.device import CpuDevice, Device
from omni.errors import ConfigError, LostRankError, ReturnedError, StageError
from omni.parallel import RankLayout, SilentCommunicator
from omni.payload import Payload
from omni.plugin import LogitsProcessorEntry
from omni.testing.ranks import RankThread, thread_ranks
from omni_ar.inputs import MultimodalEmbedding, Placeholder
from omni_ar.layers.parallel import partitioned
from omni_ar.model import ArModel, Batch
from omni_ar.options import ArOptions
from omni_ar.processors import LogitsProcessor, ProcessedRows, ProcessorRegistry
from omni_ar.run import follower
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.launch import StepMessage, decode
from omni_ar.run.phases import compute_logits
from omni_ar.run.plan import StepPlan
from tests.support.ar_driver import ArDriver, plain_prompt, small_runner
from tests.support.deep_models import VOCABULARY, WIDTH, Deep, filled, in_range, range_of
from tests.support.devices import WarmingDevice
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

TOKENS = 9
OPTIONS = ArOptions(max_num_seqs=4, block_size=4)
PROMPTS = [[(7 * index + 3 * place * place) % VOCABULARY for place in range(1 + 5 * index)] for index in range(6)]


class Pipelined:
    """The driver has rank 0, with the last layer range; the others are threads."""

    def __init__(
        self,
        size: int,
        options: ArOptions = OPTIONS,
        *,
        layers: tuple[int, ...] = (),
        kind: Callable[[tuple[str, int] | None], ArModel] = Deep,
        fails: Mapping[int, tuple[str, int]] | None = None,
        seconds: float = PATIENCE_SECONDS,
        device: Device | None = None,
        **more: Any,
    ) -> None:
        """kind: of the model, called with what fails of it. fails: by rank, as of `Deep`. seconds: time for another rank to come.
        device: of rank 0. more: of `ArDriver`."""
        layout = RankLayout(pipeline=size)
        ranks = thread_ranks(layout, seconds)
        faults = fails or {}
        models = [
            range_of(partial(kind, faults.get(rank)), layout.position(rank), size, layers) for rank in range(size)
        ]
        self.driver = ArDriver(models[0], device or CpuDevice(), options, ranks=ranks[0], **more)
        self.threads: list[RankThread] = []
        for model, own in zip(models[1:], ranks[1:], strict=True):
            with torch.inference_mode():
                made, _, _ = small_runner(model, CpuDevice(), options, ranks=own, **more)
            self.threads.append(RankThread(FollowerWorker("text", made, own)))

    def run(self) -> None:
        self.driver.gather_all()
        self.end()

    def end(self) -> None:
        for thread in self.threads:
            thread.end()
            assert thread.error is None, thread.error


def whole(prompts: Sequence[Sequence[int]], params: Mapping[str, Any] | None = None, **more: Any) -> ArDriver:
    driver = ArDriver(filled(Deep()), **more)
    driver.ask_all(prompts, params or {}, max_tokens=TOKENS)
    driver.run()
    return driver


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    tokens = whole(PROMPTS).all_tokens(len(PROMPTS))
    assert len(set(map(tuple, tokens))) == len(PROMPTS)
    return tokens


def test_ranges_hold_their_layers_and_nothing_else() -> None:
    names = {name for name, _ in Deep().named_parameters()}
    ranges = [in_range(position, 3) for position in range(3)]
    held = [{name for name, _ in each.named_parameters()} for each in ranges]
    layers = [{int(name.split(".")[2]) for name in each if "layers." in name} for each in held]
    assert layers == [{0, 1}, {2}, {3}], "the last range also has logits"
    assert set.union(*held) == names
    assert (
        ["lm_head.weight" in each for each in held]
        == ["decoder.norm.weight" in each for each in held]
        == [False, False, True]
    )
    assert all("embed_tokens.weight" in each for each in held)
    assert [each.shape.num_kv_layers for each in ranges] == [2, 1, 1]


@pytest.mark.parametrize(
    ("size", "layers", "said"),
    [
        (5, (), r"text\.pipeline_parallel: is 5, and the model has 4 layers"),
        (
            2,
            (1, 2, 1),
            r"text\.pipeline_layers: is \[1, 2, 1\]; give 2 numbers from 1 whose sum is the model's 4 layers",
        ),
        (2, (1, 2), r"is \[1, 2\]; give"),
        (2, (4, 0), r"is \[4, 0\]; give"),
    ],
)
def test_layers_that_cannot_be_divided_so_are_refused(size: int, layers: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        in_range(0, size, layers)


@pytest.mark.parametrize(
    ("size", "changes", "captured", "layers"),
    [
        (2, {}, False, ()),
        (2, {"max_in_flight": 1}, True, (1, 3)),
        (3, {"max_in_flight": 4, "graph_chunk_sizes": (8, 16)}, True, ()),
        (4, {"num_blocks": 13, "max_in_flight": 8}, False, ()),
        (2, {"num_blocks": 13, "max_num_batched_tokens": 8, "prefix_cache": False}, True, (3, 1)),
    ],
    ids=["plain", "captured", "chunks captured", "few blocks", "few blocks, captured"],
)
def test_tokens_are_those_of_the_whole(
    size: int, changes: Mapping[str, Any], captured: bool, layers: tuple[int, ...], expected: list[list[int]]
) -> None:
    cut = Pipelined(size, replace(OPTIONS, **changes), layers=layers, captured=captured)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.all_tokens(len(PROMPTS)) == expected
    assert "num_blocks" not in changes or cut.driver.counter("preemptions") > 0


@pytest.mark.parametrize("times", [1, 2])
def test_captures_that_run_leave_tokens_in_the_right_slots(times: int, expected: list[list[int]]) -> None:
    """Of three slots, after so many runs for each of one or two sizes."""
    for sizes in ((4,), (4, 2)):
        options = replace(OPTIONS, graph_batch_sizes=sizes)
        cut = Pipelined(3, options, device=WarmingDevice(times), captured=True)
        cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
        cut.run()
        assert cut.driver.all_tokens(len(PROMPTS)) == expected


class Louder(Deep):
    """Changes in place what its layers give, at each rank."""

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return super().forward(x_TD, batch).mul_(1.7)


def test_a_model_may_modify_the_results_of_its_layers() -> None:
    alone, cut = ArDriver(filled(Louder()), options=OPTIONS), Pipelined(2, kind=Louder)
    for driver in (alone, cut.driver):
        driver.ask_all(PROMPTS, max_tokens=TOKENS)
    alone.run()
    cut.run()
    assert cut.driver.all_tokens(len(PROMPTS)) == alone.all_tokens(len(PROMPTS))


@dataclass
class Steps:
    """Of a channel that is listened to: whether each step brings its inputs, and its area."""

    uploaded: list[bool] = field(default_factory=list)
    areas: list[int | None] = field(default_factory=list)

    @classmethod
    def of(cls, cut: Pipelined, monkeypatch: pytest.MonkeyPatch) -> "Steps":
        steps, channel = cls(), cut.driver.runner._followers
        assert channel is not None
        send = channel.send

        def listen(body: bytes) -> None:
            message = decode(body)
            assert isinstance(message, StepMessage)
            steps.uploaded.append(message.uploaded is not None)
            steps.areas.append(message.launch.area)
            send(body)

        monkeypatch.setattr(channel, "send", listen)
        return steps


@pytest.mark.parametrize(("size", "captured"), few(2, [(2, True), (3, False), (2, False), (3, True)], SLOW))
def test_unchanged_micro_batches_send_no_inputs(size: int, captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take turns. A block of 32 tokens holds all of a request."""
    count, tokens = 2 * size, 20
    prompts = [[3 + index, 7, 5 * index] for index in range(count)]
    options = ArOptions(max_num_seqs=count, block_size=32, max_in_flight=2)
    alone = ArDriver(filled(Deep()), options=options)
    cut = Pipelined(size, options, captured=captured)
    steps = Steps.of(cut, monkeypatch)
    for driver in (alone, cut.driver):
        driver.ask_all(prompts, max_tokens=tokens)
    alone.run()
    cut.run()
    assert cut.driver.all_tokens(count) == alone.all_tokens(count)
    middle = slice(3 * size, -3 * size)
    assert not any(steps.uploaded[middle])
    assert set(steps.areas[middle]) == set(range(size))
    assert all(one != other for one, other in pairwise(steps.areas[middle])), "each turn is another batch's"


def test_a_row_s_next_owner_is_another_batch(expected: list[list[int]]) -> None:
    """Their indexes are the same, and they are sampled in another way."""
    cut = Pipelined(2, replace(OPTIONS, max_num_seqs=2, max_in_flight=4))
    drawn = [index % 4 > 1 for index in range(len(PROMPTS))]
    for index, prompt in enumerate(PROMPTS):
        cut.driver.ask(str(index), prompt, SAMPLING["random"] if drawn[index] else {}, max_tokens=TOKENS)
    cut.run()
    alone = whole(PROMPTS, SAMPLING["random"])
    for index in range(len(PROMPTS)):
        assert cut.driver.tokens(str(index)) == (alone.tokens(str(index)) if drawn[index] else expected[index])


class Favour(LogitsProcessor):
    """bias 9 raises in the phase."""

    width = 1

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        return (float(str(args["bias"])),)

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        if bool((rows.params_RW == 9).any()):
            raise ValueError("no nine")
        return logits_RV + rows.params_RW * torch.arange(logits_RV.shape[1])


def processors(vocab_size: int = VOCABULARY) -> ProcessorRegistry:
    entries = {"favour": LogitsProcessorEntry(name="favour", processor=f"{__name__}:Favour")}
    return ProcessorRegistry(entries, vocab_size)


SAMPLING: dict[str, Mapping[str, Any]] = {
    "random": {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 3},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2, "temperature": 0.7, "seed": 1},
    "bias and stops": {"logit_bias": {5: 4.0, 6: 4.5}, "stop_token_ids": (5,), "min_tokens": 3},
    "processors": {"processors": {"favour": {"bias": 0.3}}, "temperature": 1.0, "seed": 2},
    "bad words": {"bad_words_ids": ((1, 2), (7,)), "temperature": 1.2, "seed": 9},
}


@pytest.mark.parametrize("kind", SAMPLING)
def test_draws_and_scores_are_those_of_the_whole(kind: str) -> None:
    """Stop ids end rows while later steps of theirs are at the ranks before."""
    alone = whole(PROMPTS[1:], SAMPLING[kind], processors=processors())
    cut = Pipelined(2, replace(OPTIONS, max_in_flight=4), processors=processors())
    cut.driver.ask_all(PROMPTS[1:], SAMPLING[kind], max_tokens=TOKENS)
    cut.run()
    for index in map(str, range(len(PROMPTS) - 1)):
        assert cut.driver.tokens(index) == alone.tokens(index)
        assert cut.driver.done(index).reason == alone.done(index).reason
        for given, wanted in zip(cut.driver.logprobs(index), alone.logprobs(index), strict=True):
            assert torch.equal(torch.as_tensor(given.ids), torch.as_tensor(wanted.ids))
            assert torch.allclose(torch.as_tensor(given.logprobs), torch.as_tensor(wanted.logprobs), atol=1e-5)


@pytest.mark.plants_faults
@pytest.mark.parametrize("phase", ["embed", "before", "behind", "logits"])
def test_a_step_that_fails_at_rank_0_alone_is_run_again(phase: str, expected: list[list[int]]) -> None:
    """Before or behind it has received hidden states: those of later steps are not taken for them."""
    cut = Pipelined(3, replace(OPTIONS, max_in_flight=3), fails={0: (phase, 4)})
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.counter("retries") == 1
    assert cut.driver.all_tokens(len(PROMPTS)) == expected


@pytest.mark.plants_faults
def test_a_step_that_fails_at_every_rank_is_run_again(expected: list[list[int]]) -> None:
    cut = Pipelined(3, fails=dict.fromkeys(range(3), ("embed", 4)))
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.counter("retries") == 1
    assert cut.driver.all_tokens(len(PROMPTS)) == expected


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("phase", "at"), few(1, [("behind", 3), ("embed", 1), ("embed", 2), ("before", 2), ("before", 3)], SLOW)
)
def test_a_step_that_fails_at_another_rank_alone_ends_both(
    phase: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last step of the last request, after which rank 0 has no message: no request gets a token of it."""
    monkeypatch.setattr(follower, "FORGET_SECONDS", 0.2)
    cut = Pipelined(2, fails={1: (phase, at)}, seconds=2.0)
    cut.driver.ask("0", PROMPTS[1], max_tokens=3)
    with pytest.raises(LostRankError):
        cut.driver.run()
    cut.threads[0].end()
    assert isinstance(cut.threads[0].error, StageError)
    assert "failed at rank 1 only: broken" in str(cut.threads[0].error)
    expected = whole(PROMPTS[1:2]).tokens("0")
    assert cut.driver.tokens("0") == expected[: len(cut.driver.tokens("0"))]
    assert len(cut.driver.tokens("0")) < 3


@pytest.mark.plants_faults
def test_a_request_whose_processor_raises_harms_no_other(expected: list[list[int]]) -> None:
    """Ranks without the last layer range do not sample."""
    cut = Pipelined(2, processors=processors())
    cut.driver.ask("bad", PROMPTS[2], processors={"favour": {"bias": 9}}, max_tokens=TOKENS)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert "no nine" in str(cut.driver.error("bad"))
    assert cut.driver.all_tokens(len(PROMPTS)) == expected


def see(driver: ArDriver, name: str, width: int) -> None:
    place = Placeholder(name="picture", index=0, positions=np.arange(2, 5))
    driver.ask(name, plain_prompt(PROMPTS[3], placeholders=(place,)), sources=("eyes",), max_tokens=TOKENS)
    rows = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    driver.feed_host(name, Payload(MultimodalEmbedding(name="picture", index=0), {"embeddings": rows}))
    driver.end(name, source="eyes")


@pytest.mark.plants_faults
def test_embeddings_are_shared_and_a_wrong_width_harms_no_other(expected: list[list[int]]) -> None:
    alone, cut = ArDriver(filled(Deep())), Pipelined(2)
    see(alone, "good", WIDTH)
    alone.run()
    see(cut.driver, "bad", WIDTH + 1)
    see(cut.driver, "good", WIDTH)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert "embed_inputs" in str(cut.driver.error("bad"))
    assert cut.driver.tokens("good") == alone.tokens("good") != expected[3]
    assert cut.driver.all_tokens(len(PROMPTS)) == expected


def abort_and_go_on() -> tuple[list[int], list[int]]:
    """A request is given the row of another one, whose newest tokens are not at the first rank yet. Returns its tokens, and those
    that it has alone."""
    cut = Pipelined(2, replace(OPTIONS, max_num_seqs=1, max_in_flight=4))
    cut.driver.ask("old", PROMPTS[1], max_tokens=40)
    while len(cut.driver.tokens("old")) < 4:
        cut.driver.tick()
    cut.driver.abort("old")
    cut.driver.ask("new", PROMPTS[2], max_tokens=TOKENS)
    cut.run()
    return cut.driver.tokens("new"), whole(PROMPTS[2:3]).tokens("0")


def test_late_tokens_of_a_row_s_last_owner_do_no_harm() -> None:
    given, wanted = abort_and_go_on()
    assert given == wanted


@pytest.mark.mutation
def test_a_row_that_does_not_wait_for_its_token_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepPlan, "newest_input", 0)
    given, wanted = abort_and_go_on()
    assert given != wanted


class OwnProduct(Deep):
    """Reads the weight of its output matrix."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        weight = self.lm_head.weight
        assert isinstance(weight, Tensor)
        return hidden_RD @ weight.T


def test_logits_of_a_part_of_the_vocabulary_are_explained() -> None:
    with partitioned(SilentCommunicator(0, 2)):
        model = OwnProduct()
    said = (
        r"OwnProduct\.logits gave .*\[3, 31\], not .*\[3, 61\]: with tensor_parallel a rank holds some rows of "
        r"embed_tokens\.weight and lm_head\.weight: call the module, as `self\.lm_head\(x\)`, instead"
    )
    with pytest.raises(ReturnedError, match=said):
        compute_logits(model, torch.ones(3, WIDTH), torch.empty(3, VOCABULARY))
    with pytest.raises(ReturnedError, match=r"\[3, 61\], not .*\[3, 60\]: see ArShape\.vocab_size"):
        compute_logits(Deep(), torch.ones(3, WIDTH), torch.empty(3, 60))
