"""Models whose outputs differ from their shape: refused, with and without padding."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from omni_ar.model import ArShape, Batch, PromptTokens
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText, greedy

PROMPT = [1, 2, 3, 4, 5]


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
    """Embeds in another width than its shape has."""

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
        (WrongEmbeddings(lambda x_TD: x_TD[:, None]), "embed_prompt gave [5, 1, 24] for 5 tokens"),
        (WrongForward(lambda x_TD: x_TD[-1:]), "forward gave torch.float32 [1, 24], not torch.float32 [TOKENS, 24]"),
        (WrongForward(Tensor.double), "forward gave torch.float64 [TOKENS, 24], not torch.float32 [TOKENS, 24]"),
    ],
)
def test_outputs_of_the_wrong_shape_are_refused(model: SmallText, message: str, sizes: tuple[int, ...]):
    driver = say(model, sizes)
    message = message.replace("TOKENS", str(max(sizes, default=5)))
    assert message in str(driver.error("0").__cause__ or driver.error("0"))


@pytest.mark.parametrize("sizes", [(), (16,)], ids=["uncaptured", "captured"])
def test_outputs_of_the_right_shape_are_accepted(sizes: tuple[int, ...]):
    assert say(SmallText(), sizes).tokens("0") == greedy(SmallText(), PROMPT, 5)


def test_embeddings_of_another_width_than_the_shape_s_are_refused_at_start():
    message = r"float32 of width 24 as input embeddings, not torch.float32 of 7: see ArShape"
    with pytest.raises(ValueError, match=message):
        say(Narrow(), (16,))
