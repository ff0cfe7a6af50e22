"""An error in one request fails that request alone; an error of the model names its place."""

import re
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from omni.device import COMPLETED
from omni.errors import StageError
from omni.payload import Payload
from omni.stage import Feed
from omni_ar.inputs import MultimodalEmbedding, Placeholder, StepInputs
from omni_ar.model import ArShape, Batch, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.phases import InputEmbeddings, embed_inputs
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.small_text import SmallText, greedy

PROMPT = [5, 17, 3, 44, 8]
MODEL = SmallText()
ANSWER = greedy(MODEL, PROMPT, 5)


class Odd(msgspec.Struct, frozen=True):
    """An input of no type that the stage kind takes."""


def malformed(ids: list[int] = PROMPT, **changes: object) -> list[Payload]:
    return [Payload(plain_prompt(ids, **changes), {"rows": torch.zeros(2, 3)})]


def embedding(*size: int) -> list[Payload]:
    """A prompt with a placeholder of two positions, and an embedding of this size for it."""
    slots = (Placeholder(name="sound", index=0, positions=np.array([1, 2])),)
    rows = Payload(MultimodalEmbedding(name="sound", index=0), {"x": torch.zeros(size)})
    return [Payload(plain_prompt(PROMPT, placeholders=slots)), *([rows] if size else [])]


OUTSIDE = (Placeholder(name="sound", index=1, positions=np.array([9])),)
INPUTS: list[tuple[list[Payload], str]] = [
    (malformed([]), "prompt: is empty"),
    (malformed([1] * 96), "prompt: has 96 tokens, and text takes 96"),
    (malformed(columns=np.zeros((2, 5), np.int64)), "prompt.columns: is int64 [2, 5]"),
    (malformed(columns=np.zeros(5, np.int64)), "prompt.columns: is int64 [5]"),
    (malformed(columns=np.zeros((1, 5), np.int32)), "prompt.columns: is int32 [1, 5]"),
    (malformed(positions=np.zeros((3, 5), np.int64)), "prompt.positions: is int64 [3, 5]"),
    (malformed(positions=np.zeros((1, 4), np.int64)), "prompt.positions: is int64 [1, 4]"),
    (malformed(payload_positions=np.array([2, 5])), "prompt.payload_positions: reach from 2 to 5"),
    (malformed(penalized_ids=np.array([0, 61])), "prompt.penalized_ids: reach from 0 to 61"),
    (malformed(penalized_ids=np.array([-1, 3])), "prompt.penalized_ids: reach from -1 to 3"),
    (malformed(placeholders=OUTSIDE), "prompt.placeholders.sound[1].positions: reach from 9 to 9"),
    ([*malformed(), *malformed()], "prompt: was given twice"),
    ([Payload(Odd(), {"rows": torch.zeros(2, 3)})], "a stage of kind 'ar' takes no Odd"),
    ([Payload(StepInputs(columns=np.zeros((2, 3), np.int64)))], "is int64 [2, 3]; give int64 [0, any]"),
    (embedding(), "its inputs ended before embedding sound[0]"),
    (embedding(2), "while taking its input: IndexError"),
    (
        embedding(1, 2),
        "stage 'text' failed while taking its input: embedding.sound[0]: tensor 'x' has 1 vectors for 2 prompt positions",
    ),
    (embedding(3, 2), "embedding.sound[0]: tensor 'x' has 3 vectors for 2 prompt positions"),
]


def assert_answers(driver: ArDriver) -> None:
    driver.ask("next", PROMPT, max_tokens=5)
    driver.run()
    assert driver.tokens("next") == ANSWER


@pytest.mark.parametrize(("payloads", "message"), INPUTS)
def test_inputs_that_do_not_fit_fail_their_request_alone(payloads: list[Payload], message: str):
    driver = ArDriver(MODEL, options=ArOptions(max_num_seqs=2, block_size=2))
    driver.ask("good", PROMPT, max_tokens=5)
    driver.open("bad")
    refs = [driver.feed("bad", payload) for payload in payloads]
    driver.end("bad")
    driver.run()
    assert message in str(driver.error("bad"))
    assert driver.tokens("good") == ANSWER
    assert all(ref.freed for ref in refs)


CODES = ("code_temperature", "code_top_k", "code_top_p")


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"stop_token_ids": (61,)}, "stop_token_ids: 61 is not in the vocabulary; use ids below 61"),
        *(({name: 1}, f"{name}: is given, and a token of text begins no frame") for name in CODES),
        ({"max_tokens": 8}, "max_tokens: prompt and output of 13 tokens need 4 blocks, and text has 3"),
    ],
)
def test_sampling_that_the_stage_cannot_serve_fails_alone(sampling: dict[str, object], message: str):
    driver = ArDriver(MODEL, options=ArOptions(max_num_seqs=2, block_size=4, num_blocks=3))
    driver.ask("bad", PROMPT, sampling)
    driver.ask("good", PROMPT, max_tokens=5)
    driver.run()
    assert str(driver.error("bad")).startswith(f"sampling.text.{message}")
    assert driver.tokens("good") == ANSWER


def test_steps_that_cannot_be_packed_leave_their_upload_slots():
    driver = ArDriver(MODEL, options=ArOptions(max_num_seqs=1, block_size=4))
    everywhere = np.arange(90)
    slots = tuple(Placeholder(name="sound", index=index, positions=everywhere) for index in range(400))
    for index in range(8):  # more than the ring has slots
        name = str(index)
        driver.open(name)
        for slot in slots:
            meta = MultimodalEmbedding(name="sound", index=slot.index)
            driver.feed_host(name, Payload(meta, {"rows": torch.zeros(90, 1)}))
        driver.feed_host(name, Payload(plain_prompt([1] * 90, placeholders=slots)))
        driver.run()
        assert "the upload buffer has" in str(driver.error(name))
    assert_answers(driver)


def test_a_request_that_has_left_holds_no_embeddings():
    """Steps in flight may still hold the request."""
    driver = ArDriver(MODEL)
    driver.open("r")
    driver.feed("r", Payload(MultimodalEmbedding(name="sound", index=0), {"rows": torch.zeros(2, 3)}))
    driver.tick()
    request = driver.worker.requests["r"]
    assert request.embeddings
    driver.abort("r")
    driver.tick()
    assert not request.embeddings


def test_a_late_embedding_for_a_request_that_has_left_is_released():
    driver = ArDriver(MODEL)
    driver.open("r")
    driver.abort("r")
    ref = driver.feed("r", Payload(MultimodalEmbedding(name="sound", index=0), {"rows": torch.zeros(2, 3)}))
    driver.tick()
    assert ref.freed
    assert not driver.held


def test_a_request_that_cannot_be_planned_fails_alone():
    driver = ArDriver(MODEL, options=ArOptions(max_num_seqs=2, block_size=2))
    driver.ask("good", PROMPT, max_tokens=5)
    driver.ask("bad", PROMPT, max_tokens=5, cache_salt="\ud800")  # cannot be hashed
    driver.ask("later", PROMPT, max_tokens=5)
    driver.run()
    assert "stage 'text' failed while planning: UnicodeEncodeError" in str(driver.error("bad"))
    assert driver.tokens("good") == driver.tokens("later") == ANSWER


Spoil = Callable[[Tensor], Tensor]


class WrongEmbeddings(SmallText):
    def __init__(self, spoil: Spoil) -> None:
        super().__init__()
        self._spoil = spoil

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return self._spoil(super().embed_prompt(prompt))


class WrongForward(WrongEmbeddings):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return SmallText.embed_prompt(self, prompt)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return self._spoil(super().forward(x_TD, batch))


class Narrow(SmallText):
    @property
    def shape(self) -> ArShape:
        return replace(super().shape, input_width=7)


def say(model: SmallText, sizes: tuple[int, ...]) -> ArDriver:
    """Decodes uncaptured, prompts captured in `sizes`."""
    options = ArOptions(max_num_seqs=4, block_size=4, graph_batch_sizes=(), graph_chunk_sizes=sizes)
    driver = ArDriver(model, options=options, captured=True)
    driver.ask("0", PROMPT, max_tokens=5)
    driver.run()
    return driver


@pytest.mark.parametrize("sizes", [(), (16,)], ids=["uncaptured", "captured"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WrongEmbeddings(lambda x_TD: x_TD[:-1]), "embed_prompt gave [4, 24] for 5 tokens"),
        (WrongEmbeddings(lambda x_TD: x_TD.repeat(2, 1)), "embed_prompt gave [10, 24] for 5 tokens"),
        (WrongForward(lambda x_TD: x_TD[-1:]), "forward gave torch.float32 [1, 24], not torch.float32 [TOKENS, 24]"),
        (WrongForward(Tensor.double), "forward gave torch.float64 [TOKENS, 24], not torch.float32 [TOKENS, 24]"),
    ],
)
def test_outputs_of_the_wrong_shape_are_refused(model: SmallText, message: str, sizes: tuple[int, ...]):
    driver = say(model, sizes)
    message = message.replace("TOKENS", str(max(sizes, default=5)))
    assert message in str(driver.error("0").__cause__ or driver.error("0"))


def test_embeddings_with_a_dimension_too_many_are_refused():
    tokens = PromptTokens(torch.tensor([PROMPT]), ())
    with pytest.raises(ValueError, match=re.escape("embed_prompt gave [5, 1, 24] for 5 tokens")):
        embed_inputs(WrongEmbeddings(lambda x_TD: x_TD[:, None]), [], tokens, torch.empty(0), InputEmbeddings())


@pytest.mark.parametrize("sizes", [(), (16,)], ids=["uncaptured", "captured"])
def test_outputs_of_the_right_shape_are_accepted(sizes: tuple[int, ...]):
    assert say(SmallText(), sizes).tokens("0") == ANSWER


def test_embeddings_of_another_width_than_the_shape_s_are_refused_at_start():
    message = r"float32 of width 24 as input embeddings, not torch.float32 of 7: see ArShape"
    with pytest.raises(ValueError, match=message):
        say(Narrow(), (16,))


class Seeing(SmallText):
    """Adds the tensor `pixels` of embeddings to those of their tokens."""

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD = super().embed_prompt(prompt)
        for embedding in prompt.embeddings:
            x_TD.index_add_(0, embedding.tokens_n, embedding.tensors["pixels"])
        return x_TD


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("vision->text", ", in the stage or in the adapter of vision->text"),
        ("frontend", " in Frontend.prepare"),
    ],
)
def test_an_embedding_whose_tensors_have_other_names_blames_its_producer(source: str, remedy: str):
    driver = ArDriver(Seeing(), options=ArOptions(max_num_seqs=3, block_size=2))
    slots = (Placeholder(name="image", index=0, positions=np.array([1, 2])),)
    for request, names in {"bad": ("picture", "level"), "good": ("pixels", "level"), "none": ()}.items():
        driver.open(request)
        tensors = {name: torch.zeros(2, 24) for name in names}
        meta = MultimodalEmbedding(name="image", index=0)
        driver.worker.inbox.append(Feed(request, Payload(meta, tensors), COMPLETED, source=source))
        driver.feed_host(request, Payload(plain_prompt(PROMPT, placeholders=slots)))
        driver.end(request)
    driver.run()
    stage = source.partition("->")[0]
    for request, given in (("bad", "'picture', 'level'"), ("none", "none")):
        problem = f"it gave the tensors {given} as embedding 'image', and the model reads 'pixels'"
        message = f"stage '{stage}' failed while giving an embedding: {problem}: give them the model's names{remedy}"
        assert str(driver.error(request)) == message
        assert isinstance(driver.error(request), StageError)
    assert driver.tokens("good")
