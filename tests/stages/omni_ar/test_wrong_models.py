"""Models that give something other than they say: told, with and without padding, where it would be silent."""

import pytest
from torch import Tensor

from omni_ar.model import Batch, PromptTokens
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText, greedy

PROMPT = [1, 2, 3, 4, 5]


class Fewer(SmallText):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return super().embed_prompt(prompt)[:-1]


class More(SmallText):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return super().embed_prompt(prompt).repeat(2, 1)


class Deeper(SmallText):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return super().embed_prompt(prompt)[:, None]


class LastOnly(SmallText):
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return super().forward(x_TD, batch)[-1:]


class Double(SmallText):
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return super().forward(x_TD, batch).double()


def say(model: SmallText, sizes: tuple[int, ...]) -> ArDriver:
    """Decodes uncaptured, prompts captured in `sizes`."""
    options = ArOptions(max_num_seqs=4, block_size=4, graph_batch_sizes=(), graph_chunk_sizes=sizes)
    driver = ArDriver(model, options=options, captured=True)
    driver.ask("0", PROMPT, max_tokens=5)
    driver.run()
    return driver


@pytest.mark.parametrize("sizes", [(), (16,)], ids=["uncaptured", "captured"])
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Fewer, "embed_prompt gave [4, 24] for 5 tokens"),
        (More, "embed_prompt gave [10, 24] for 5 tokens"),
        (Deeper, "embed_prompt gave [5, 1, 24] for 5 tokens"),
        (LastOnly, "forward gave torch.float32 [1, 24], not torch.float32 [5, 24]"),
        (Double, "forward gave torch.float64 [5, 24], not torch.float32 [5, 24]"),
    ],
)
def test_what_a_model_gives_is_what_it_was_asked_for(model: type[SmallText], told: str, sizes: tuple[int, ...]):
    if sizes and model in (LastOnly, Double):
        told = told.replace("[5, 24]", "[16, 24]")
    driver = say(model(), sizes)
    assert told in str(driver.error("0").__cause__ or driver.error("0"))


@pytest.mark.parametrize("sizes", [(), (16,)], ids=["uncaptured", "captured"])
def test_one_that_gives_it_is_not_told_so(sizes: tuple[int, ...]):
    assert say(SmallText(), sizes).tokens("0") == greedy(SmallText(), PROMPT, 5)
