"""A small random talker on the contract of codec models, and the same model as a reference implementation.

Shape legend: T tokens, R rows, D width, V vocabulary, G code groups.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from omni_ar.inputs import Prompt
from omni_ar.model import ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens, PromptTokens
from tests.support.small_text import HEAD, KV_HEADS, LAYERS, WIDTH, SmallLayers, random_matrix

GROUPS = 3


class SmallCodec(CodecModel):
    """A prompt token is a text id and a code. A step's input is the last frame's codes and the text id that conditions it."""

    num_groups = GROUPS
    next_width = WIDTH

    def __init__(self, codes: int = 37, texts: int = 23, positions: int = 96) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(codes)
        self.codes, self.texts, self.positions = codes, texts, positions
        self.text_table = random_matrix(texts, WIDTH, generator)
        self.code_tables = nn.ParameterList(random_matrix(codes, WIDTH, generator) for _ in range(GROUPS))
        self.layers = SmallLayers(positions, generator)
        self.heads = nn.ParameterList(random_matrix(codes, WIDTH, generator) for _ in range(GROUPS))

    @property
    def shape(self) -> ArShape:
        return ArShape(
            num_layers=LAYERS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD,
            hidden_width=WIDTH,
            vocab_size=self.codes,
            max_positions=self.positions,
            prompt_columns=("text", "code"),
            step_columns=("text",),
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        texts_TD, codes_TD = self.text_table[prompt.columns_CT[0]], self.code_tables[0][prompt.columns_CT[1]]
        return texts_TD + torch.as_tensor(codes_TD)

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD + self.text_table[step.columns_SR[0]]

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.layers(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits_RV: Tensor = hidden_RD @ self.heads[0].T
        return logits_RV

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        frame, state_RD = [code0_R], hidden_RD
        for group in range(1, GROUPS):
            state_RD = torch.tanh(state_RD + self.code_tables[group - 1][frame[-1]])
            frame.append(draw(state_RD @ self.heads[group].T, group))
        codes_RG = torch.stack(frame, 1)
        return Codes(codes_RG, self.embed_codes(codes_RG))

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        embedded_RGD = torch.stack([table[codes_RG[:, group]] for group, table in enumerate(self.code_tables)], 1)
        return embedded_RGD.sum(1)


def codec_prompt(text: Sequence[int], codes: Sequence[int]) -> Prompt:
    """Text ids and codes side by side, positions counted from 0."""
    columns = np.array([text, codes], np.int64)
    length = columns.shape[1]
    return Prompt(columns=columns, positions=np.arange(length)[None], next_position=length)


def spoken(
    model: SmallCodec, prompt: Prompt, texts: Sequence[int], pad: int, max_tokens: int, stops: Sequence[int] = ()
) -> list[list[int]]:
    """Greedy frames, everything recomputed for each; of the last token, which has no frame, group 0 alone.

    texts: conditioning ids of the first steps after the prompt. pad: of all later ones.
    """
    frames: list[list[int]] = []
    inputs = [_row(model, int(text), [int(code)]) for text, code in prompt.columns.T]
    while True:
        hidden_D = model.layers.whole(torch.stack(inputs))[-1]
        frame = [_best(model.heads[0] @ hidden_D)]
        frames.append(frame)
        if len(frames) == max_tokens or frame[0] in stops:
            return frames
        for group in range(1, GROUPS):
            hidden_D = torch.tanh(hidden_D + model.code_tables[group - 1][frame[-1]])
            frame.append(_best(model.heads[group] @ hidden_D))
        step = len(frames) - 1
        inputs.append(_row(model, texts[step] if step < len(texts) else pad, frame))


def _row(model: SmallCodec, text: int, codes: Sequence[int]) -> Tensor:
    row_D = model.text_table[text]
    for group, code in enumerate(codes):
        row_D = row_D + model.code_tables[group][code]
    return row_D


def _best(scores: Tensor) -> int:
    return max(range(len(scores)), key=scores.tolist().__getitem__)
