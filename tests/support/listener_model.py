"""A small random model whose decode steps are conditioned by a text id and a device row, and the same model computed the long way.

Shape legend: T tokens, R rows, D width, W width of step rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from omni_ar.model import ArShape, NextTokens
from support.small_text import WIDTH, SmallText, random_matrix

TEXTS = 23

Condition = tuple[int, Tensor | None]
"""What a step hears: a text id, and a row `[W]` if there is one."""


class Listener(SmallText):
    """heard: width of the rows."""

    def __init__(self, heard: int = 64, vocab: int = 53, positions: int = 96) -> None:
        super().__init__(vocab, positions)
        generator = torch.Generator().manual_seed(heard)
        self.heard = heard
        self.text_table = random_matrix(TEXTS, WIDTH, generator)
        self.hearing = random_matrix(WIDTH, heard, generator)

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=("text",), step_width=self.heard)

    def embed_next(self, step: NextTokens) -> Tensor:
        heard_RD = torch.tanh(step.rows_RE @ self.hearing.T / 8)
        return self._embed(step.ids_R) + self.text_table[step.columns_SR[0]] + heard_RD


class WordlessListener(Listener):
    """Steps have rows alone."""

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, step_columns=())

    def embed_next(self, step: NextTokens) -> Tensor:
        none_1R = torch.zeros_like(step.ids_R)[None]
        return super().embed_next(replace(step, columns_SR=none_1R))


def answered(
    model: Listener, prompt: Sequence[int], heard: Sequence[Condition], pad: int, max_tokens: int
) -> list[int]:
    """Greedy tokens, everything recomputed for each. heard: by the first steps after the prompt. pad: text id of all later ones."""
    made: list[int] = []
    inputs = [model.embeddings[token] for token in prompt]
    while True:
        scores = (model.head @ model.layers.whole(torch.stack(inputs))[-1]).tolist()
        made.append(max(range(len(scores)), key=scores.__getitem__))
        if len(made) == max_tokens:
            return made
        text, row_W = heard[len(made) - 1] if len(made) <= len(heard) else (pad, None)
        row_W = torch.zeros(model.heard) if row_W is None else row_W
        embedded_RD = model.embed_next(
            NextTokens(torch.tensor(made[-1:]), torch.tensor([[text]]), torch.empty(1, 0), row_W[None])
        )
        inputs.append(embedded_RD[0])
