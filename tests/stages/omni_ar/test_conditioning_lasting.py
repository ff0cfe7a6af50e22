"""Device rows that condition decode steps: what outlives a step, and what must not be seen of others."""

import pytest
import torch
from torch import Tensor

from omni_ar.model import NextTokens
from omni_ar.options import ArOptions
from tests.stages.omni_ar.row_feeder import PAD, Late, RowFeeder, random_pages
from tests.support.ar_driver import ArDriver
from tests.support.devices import QueuedDevice
from tests.support.listener import Condition, Listener, WordlessListener, answered

WIDTH = 8
MODEL = Listener(WIDTH)


def feeder(model: Listener = MODEL, *, captured: bool = False, **changes: object) -> RowFeeder:
    options = ArOptions(**({"max_num_seqs": 2, "block_size": 2} | changes))
    return RowFeeder(
        ArDriver(model, None, options, captured=captured), random_pages(WIDTH), len(model.shape.step_columns)
    )


def say(model: Listener, prompt: list[int], heard: list[Condition], max_tokens: int) -> list[int]:
    with torch.inference_mode():
        return answered(model, prompt, heard, PAD, max_tokens)


def test_a_preempted_request_goes_on_when_its_row_comes():
    feed, late = feeder(num_blocks=9, max_model_len=18), Late()
    feed.open("evicted", [1, 2, 3], max_tokens=12, rank=(1, 1))
    feed.rows("evicted", [1], [0])
    feed.rows("evicted", [2], [1], ready=late)
    feed.driver.run()
    feed.open("other", [4, 5, 6], max_tokens=15)
    feed.rows("other", [3], [2])
    feed.end("other")
    feed.driver.run()
    assert feed.driver.counter("preemptions") == 1
    assert feed.driver.done("other").reason == "length"
    assert len(feed.driver.tokens("evicted")) == 2
    late.over = True
    feed.driver.run()
    assert len(feed.driver.tokens("evicted")) == 3
    feed.end("evicted")
    feed.driver.run()
    assert feed.driver.tokens("evicted") == say(MODEL, [1, 2, 3], feed.heard["evicted"], 12)
    assert feed.driver.tokens("other") == say(MODEL, [4, 5, 6], feed.heard["other"], 15)


@pytest.mark.parametrize("model", [MODEL, WordlessListener(WIDTH)])
def test_what_was_said_under_a_condition_is_no_prefix_of_a_prompt(model: Listener):
    feed = feeder(model)
    prompt = [1, 2, 3, 4]
    feed.open("first", prompt, max_tokens=9)
    feed.rows("first", [0] * 8, range(8))
    feed.end("first")
    feed.driver.run()
    longer = [*prompt, *feed.driver.tokens("first")[:6]]
    feed.open("second", longer, max_tokens=6)
    feed.end("second")
    feed.driver.run()
    assert feed.driver.counter("cached_tokens") == len(prompt)
    assert feed.driver.tokens("second") == say(model, longer, [], 6)


class Watched(Listener):
    """Keeps the rows that it was given."""

    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.given: list[Tensor] = []

    def embed_next(self, step: NextTokens) -> Tensor:
        self.given.append(step.rows_RE.clone())
        return super().embed_next(step)


def test_padding_and_steps_without_a_row_are_given_zeros():
    model = Watched()
    feed = feeder(model, captured=True, max_num_seqs=4, graph_batch_sizes=(4,), graph_chunk_sizes=())
    model.given.clear()
    feed.open("0", [1, 2], max_tokens=4)
    feed.rows("0", [1], [5])
    feed.texts("0", [1])
    feed.rows("0", [1], [6])
    feed.end("0")
    feed.driver.run()
    zeros_W = torch.zeros(WIDTH)
    rows_W = feed.pages.flatten(0, 1)
    for given_RW, wanted_W in zip(model.given, (rows_W[5], zeros_W, rows_W[6]), strict=True):
        assert torch.equal(given_RW, torch.stack([wanted_W, zeros_W, zeros_W, zeros_W]))


def test_the_next_owner_of_a_row_sees_nothing_of_the_last():
    feed = feeder(max_num_seqs=1)
    for index in range(3):
        name = str(index)
        feed.open(name, [1, 2, index], max_tokens=8)
        feed.rows(name, [index] * (3 - index), range(4 * index, 3 + 3 * index))
        feed.end(name)
    feed.driver.run()
    for index in range(3):
        assert feed.driver.tokens(str(index)) == say(MODEL, [1, 2, index], feed.heard[str(index)], 8)


def test_a_producer_is_told_of_gathers_that_are_under_way():
    """It may move the rows as soon as they are over, though another input of the same payload still has a claim."""
    device = QueuedDevice()
    options = ArOptions(max_num_seqs=2, block_size=2)
    feed = RowFeeder(ArDriver(MODEL, device, options), random_pages(WIDTH))
    feed.open("0", [1, 2], max_tokens=4)
    feed.driver.run()
    given = feed.rows("0", [1], [0])
    part = feed.slices[-1]
    assert part.reader.done()
    feed.driver.tick()
    assert given.ref.released
    assert not part.reader.done()
    assert not given.ref.freed
    device.synchronize()
    assert part.reader.done()
    assert given.ref.freed
