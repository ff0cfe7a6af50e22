"""Text models that are wrong in one way each. Shape legend: T tokens, R rows, D width, V vocabulary."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from omni_ar.layers.text_model import TextModel
from omni_ar.model import Batch, NextTokens, PromptTokens


class ScalesEmbeddings(TextModel):
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return super().embed_prompt(prompt) * 3


class DropsOut(TextModel):
    """As one that is left in training mode."""

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return torch.nn.functional.dropout(super().forward(x_TD, batch), 0.5, training=True)


class AnswersForTheFirst(TextModel):
    def logits(self, hidden_RD: Tensor) -> Tensor:
        return super().logits(hidden_RD[:1]).expand(len(hidden_RD), -1)


class FailsInLargeBatches(TextModel):
    def logits(self, hidden_RD: Tensor) -> Tensor:
        if len(hidden_RD) > 3:
            raise ValueError("a batch of more than 3")
        return super().logits(hidden_RD)


class TakesDecodeRowsForPrompts(TextModel):
    """Whenever there are prompts in the step."""

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        rows = batch.attention.num_decode
        if 0 < rows < len(x_TD):
            x_TD = torch.cat((x_TD[:rows] * 0.1, x_TD[rows:]))
        return super().forward(x_TD, batch)


class CountsPositionsInTheChunk(TextModel):
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        positions_PT = batch.positions_PT.clone()
        for row in batch.attention.prefills:
            positions_PT[:, row.start : row.start + row.query_length] -= row.context_length
        return super().forward(x_TD, replace(batch, positions_PT=positions_PT))


class KeepsTheTailInPython(TextModel):
    """The last hidden state of a chunk, for the first token of the next: whichever prompt that is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reached = 0

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        scale = torch.ones(len(x_TD), 1)
        for row in batch.attention.prefills:
            if row.context_length not in (0, self.reached):
                scale[row.start] = -1.0
            self.reached = row.context_length + row.query_length
        return super().forward(x_TD * scale, batch)


class EmbedsFewRows(TextModel):
    """As many as ever decode at once, not those of a preempted request."""

    def embed_next(self, step: NextTokens) -> Tensor:
        embedded_RD = super().embed_next(step)
        known_R = torch.arange(len(embedded_RD), device=embedded_RD.device) < 5
        return embedded_RD * known_R[:, None]


class KeepsStateByRow(TextModel):
    """A count of tokens for each row of the batch, which moves when a request ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[int] = []

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        rows = batch.attention.num_decode
        moved = rows < len(self.seen) and not batch.attention.prefills and rows > 0
        self.seen = [0] * rows
        return super().forward(-x_TD if moved else x_TD, batch)


class AsksForAValue(TextModel):
    def logits(self, hidden_RD: Tensor) -> Tensor:
        if hidden_RD.abs().max().item() > 1e6:
            raise ValueError("overflow")
        return super().logits(hidden_RD)


class MasksByValue(TextModel):
    def embed_next(self, step: NextTokens) -> Tensor:
        embedded_RD = super().embed_next(step)
        embedded_RD[step.ids_R < 0] = 0
        return embedded_RD
