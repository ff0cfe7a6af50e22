"""A stage on several ranks: every rank runs the steps of rank 0, and then has the same state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.device import CpuDevice
from omni.errors import StageError
from omni.payload import Payload
from omni.plugin import LogitsProcessorEntry
from omni.testing.ranks import RankThread, thread_ranks
from omni_ar.inputs import MultimodalEmbedding, Placeholder
from omni_ar.model import ArModel, Batch, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.processors import LogitsProcessor, ProcessedRows, ProcessorRegistry
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.runner import Runner
from tests.support.ar_driver import ArDriver, plain_prompt, small_runner
from tests.support.patience import PATIENCE_SECONDS
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.small_text import WIDTH, SmallText, greedy

OPTIONS = ArOptions(max_num_seqs=4, block_size=4)
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(1 + 5 * index)] for index in range(6)]
TOKENS = 9
MODEL = SmallText()


@dataclass
class Follower:
    runner: Runner
    thread: RankThread


class Cut:
    """A stage on several ranks: rank 0 has a driver, the others threads."""

    def __init__(
        self,
        model: ArModel,
        options: ArOptions = OPTIONS,
        *,
        size: int = 2,
        follower: ArModel | None = None,
        seconds: float = PATIENCE_SECONDS,
        **more: Any,
    ) -> None:
        """follower: the model of the other ranks. seconds: time that ranks wait for each other. more: of `ArDriver`."""
        ranks = thread_ranks(size, seconds)
        self.driver = ArDriver(model, CpuDevice(), options, ranks=ranks[0], **more)
        self.followers: list[Follower] = []
        for each in ranks[1:]:
            with torch.inference_mode():
                runner, _, _ = small_runner(follower or model, CpuDevice(), options, ranks=each, **more)
            runner.device.synchronize()
            self.followers.append(Follower(runner, RankThread(FollowerWorker("text", runner, each))))

    def run(self) -> None:
        """To the end of all requests, at every rank."""
        self.driver.gather_all()
        for follower in self.followers:
            follower.thread.end()
            assert follower.thread.error is None, follower.thread.error
            follower.runner.device.synchronize()
        for follower in self.followers:
            for name, tensor in state_of(follower.runner).items():
                assert torch.equal(tensor, state_of(self.driver.runner)[name]), name


def state_of(runner: Runner) -> dict[str, Tensor]:
    """The state on a device after the steps of a stage."""
    rows, pages = runner._state, runner.pages
    null_row = rows.fields.shape[0] - 1
    state = {"fields": rows.fields[:null_row], "tables": rows.block_table, "codes": rows.next_codes[:null_row]}
    state |= {"counts": rows.sampling.counts[:null_row], "keys": torch.stack([*pages.kv.key])[:, 1:]}
    return state | ({"frames": pages.codes[1:]} if pages.codes is not None else {})


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("changes", "captured"),
    [
        ({}, False),
        ({"max_in_flight": 1}, True),
        ({"max_in_flight": 4, "graph_chunk_sizes": (8, 16)}, True),
        ({"num_blocks": 13, "max_in_flight": 3}, False),
        ({"num_blocks": 13, "max_num_batched_tokens": 8, "prefix_cache": False}, True),
    ],
    ids=["plain", "captured", "chunks captured", "few blocks", "few blocks, captured"],
)
def test_every_rank_runs_the_steps_of_rank_0(changes: Mapping[str, Any], captured: bool, size: int):
    cut = Cut(MODEL, replace(OPTIONS, **changes), size=size, captured=captured)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.all_tokens(len(PROMPTS)) == [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS]
    assert "num_blocks" not in changes or cut.driver.counter("preemptions") > 0


class Favour(LogitsProcessor):
    width = 1

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        return (float(str(args["bias"])),)

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        return logits_RV + rows.params_RW * torch.arange(logits_RV.shape[1])


def scores(driver: ArDriver, index: int) -> list[list[list[float]]]:
    return [[each.ids.tolist(), each.logprobs.tolist()] for each in driver.logprobs(str(index))]


SAMPLING: dict[str, Mapping[str, Any]] = {
    "random": {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "seed": 3},
    "penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "log-probabilities": {"logprobs": 3, "prompt_logprobs": 2, "temperature": 0.7, "seed": 1},
    "bias and stops": {"logit_bias": {5: 4.0, 6: 4.5}, "stop_token_ids": (5,), "min_tokens": 3},
    "processors": {"processors": {"favour": {"bias": 0.3}}, "temperature": 1.0, "seed": 2},
    "bad words": {"bad_words_ids": ((1, 2), (7,)), "temperature": 1.2, "seed": 9},
}


@pytest.mark.parametrize("kind", SAMPLING)
def test_every_rank_draws_the_same_tokens(kind: str):
    favour = LogitsProcessorEntry(name="favour", processor=f"{__name__}:Favour")
    registry = ProcessorRegistry({"favour": favour}, MODEL.shape.vocab_size)
    alone, cut = ArDriver(MODEL, processors=registry), Cut(MODEL, processors=registry)
    for driver in (alone, cut.driver):
        driver.ask_all(PROMPTS[1:], SAMPLING[kind], max_tokens=TOKENS)
    alone.run()
    cut.run()
    for index in range(len(PROMPTS) - 1):
        assert cut.driver.tokens(str(index)) == alone.tokens(str(index))
        assert scores(cut.driver, index) == scores(alone, index)


@pytest.mark.parametrize("changes", [{}, {"num_blocks": 10}], ids=["plain", "few blocks"])
def test_frames_are_the_same_at_every_rank(changes: Mapping[str, Any]):
    model, options = SmallCodec(), replace(OPTIONS, **changes)
    alone, cut = ArDriver(model, options=options), Cut(model, options)
    for driver in (alone, cut.driver):
        for index in range(4):
            text = [(5 * index + 2 * place) % 23 for place in range(3 + index)]
            driver.speak(str(index), codec_prompt(text, text), [index, 3, 4], pad=2, max_tokens=14)
    alone.gather_all()
    cut.run()
    for index in range(4):
        assert cut.driver.frames(str(index)) == alone.frames(str(index)) != []
    assert "num_blocks" not in changes or cut.driver.counter("preemptions") > 0


class Fragile(SmallText):
    """Fails at some call of `forward`, counted from the first."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at = at
        self.calls = 0

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise ValueError("broken")
        return super().forward(x_TD, batch)


@pytest.mark.plants_faults
def test_a_step_that_fails_at_every_rank_is_run_again():
    cut = Cut(Fragile(4), follower=Fragile(4))
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert cut.driver.counter("retries") == 1
    assert cut.driver.all_tokens(len(PROMPTS)) == [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("at", "said"), [((4, None), "failed at rank 0, and not at rank 1"), ((None, 4), "failed at rank 1 only")]
)
def test_a_step_that_fails_at_one_rank_ends_the_follower(at: tuple[int | None, int | None], said: str):
    cut = Cut(Fragile(at[0]), follower=Fragile(at[1]), seconds=0.3)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.driver.run()
    thread = cut.followers[0].thread
    thread.end()
    assert isinstance(thread.error, StageError)
    assert said in str(thread.error)


class Raises(Favour):
    """bias 7: on the host, when the request starts. bias 9: in the phase, at every rank."""

    def pack(self, args: Mapping[str, object], vocab_size: int) -> Sequence[float]:
        if args["bias"] == 7:
            raise ValueError("no seven")
        return super().pack(args, vocab_size)

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        if bool((rows.params_RW == 9).any()):
            raise ValueError("no nine")
        return logits_RV


@pytest.mark.plants_faults
@pytest.mark.parametrize(("bias", "said"), [(7, "no seven"), (9, "no nine")])
def test_a_request_whose_processor_raises_harms_no_other_and_no_rank(bias: int, said: str):
    entry = LogitsProcessorEntry(name="favour", processor=f"{__name__}:Raises")
    cut = Cut(MODEL, processors=ProcessorRegistry({"favour": entry}, MODEL.shape.vocab_size))
    cut.driver.ask("bad", PROMPTS[2], processors={"favour": {"bias": bias}}, max_tokens=TOKENS)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert said in str(cut.driver.error("bad"))
    assert cut.driver.all_tokens(len(PROMPTS)) == [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS]


class Seeing(SmallText):
    """Adds embeddings `picture` to those of its tokens."""

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD = super().embed_prompt(prompt).clone()
        for picture in prompt.embeddings:
            for rows_nD in picture.tensors["rows"]:
                x_TD.index_add_(0, picture.tokens_n, rows_nD)
        return x_TD


def see(driver: ArDriver, name: str, width: int, layers: int = 1) -> None:
    place = Placeholder(name="picture", index=0, positions=np.arange(2, 5))
    driver.ask(name, plain_prompt(PROMPTS[3], placeholders=(place,)), sources=("eyes",), max_tokens=TOKENS)
    rows = torch.randn(layers, 3, width, generator=torch.Generator().manual_seed(width))
    driver.feed_host(name, Payload(MultimodalEmbedding(name="picture", index=0), {"rows": rows}))
    driver.end(name, source="eyes")


@pytest.mark.plants_faults
def test_an_embedding_of_a_wrong_width_harms_no_other_request_and_no_rank():
    model = Seeing()
    alone, cut = ArDriver(model), Cut(model)
    see(alone, "good", WIDTH)
    alone.run()
    see(cut.driver, "bad", WIDTH + 1)
    see(cut.driver, "good", WIDTH)
    cut.driver.ask_all(PROMPTS, max_tokens=TOKENS)
    cut.run()
    assert "embed_inputs" in str(cut.driver.error("bad"))
    assert cut.driver.tokens("good") == alone.tokens("good") != greedy(model, PROMPTS[3], TOKENS)
    assert cut.driver.all_tokens(len(PROMPTS)) == [greedy(model, prompt, TOKENS) for prompt in PROMPTS]


def test_every_rank_gets_a_chunk_of_an_embedding_of_several_layers():
    """Which is not contiguous, as communicators require of what they send."""
    model, options = Seeing(), replace(OPTIONS, max_num_batched_tokens=4)
    alone, cut = ArDriver(model), Cut(model, options)
    for driver in (alone, cut.driver):
        see(driver, "0", WIDTH, layers=2)
    alone.run()
    cut.run()
    assert cut.driver.tokens("0") == alone.tokens("0") != greedy(model, PROMPTS[3], TOKENS)
