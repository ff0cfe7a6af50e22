"""A family whose every token emits a hidden state, over the weights of a thinker: `writer` alone, or `writer` -> `reader`."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from bench.weights import model_of
from omni.payload import Payload
from omni.stage import StageContext
from omni_ar.inputs import TokenHidden
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens

THINKER = "thinker"


class Emitting(ArModel):
    """The thinker with another shape. It stores hidden states of the layer that a talker would read.

    emits: whether those of generated tokens are stored, each for a consumer; if not, no hidden state is stored.
    """

    def __init__(self, thinker: ArModel, emits: bool) -> None:
        super().__init__()
        self.thinker = thinker
        self._emits = emits

    @property
    def shape(self) -> ArShape:
        shape = self.thinker.shape
        return replace(shape, payload_width=shape.hidden_width if self._emits else 0, emits_tokens=self._emits)

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return self.thinker.embed_prompt(prompt)

    def embed_next(self, step: NextTokens) -> Tensor:
        return self.thinker.embed_next(step)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.thinker(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return self.thinker.logits(hidden_RD)


def build_emitting(context: StageContext) -> Emitting:
    return Emitting(model_of(THINKER, context), emits=True)


def build_silent(context: StageContext) -> Emitting:
    return Emitting(model_of(THINKER, context), emits=False)


class ReaderAdapter:
    """The adapter to the reader: hidden states of tokens go on, tokens do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, TokenHidden) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()
