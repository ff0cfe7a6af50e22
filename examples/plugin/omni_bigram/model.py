"""The model: the row of a table is the logits of the next byte.

Shape legend: T tokens, R rows, V vocabulary.
"""

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens

BYTES = 256


class BigramModel(ArModel):
    """No layers: a token's embedding is its hidden state is its logits."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.table_VV = nn.Parameter(torch.empty(BYTES, BYTES, device=device, dtype=dtype))

    @property
    def shape(self) -> ArShape:
        return ArShape(
            num_layers=0,
            num_kv_heads=1,
            head_dim=1,
            hidden_width=BYTES,
            vocab_size=BYTES,
            max_positions=4096,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return self.table_VV.index_select(0, prompt.columns_CT[0])

    def embed_next(self, step: NextTokens) -> Tensor:
        return self.table_VV.index_select(0, step.ids_R)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        return x_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD


def build(context: StageContext) -> BigramModel:
    model = BigramModel(context.device.torch_device, context.dtype)
    load_weights(model, context, prefixes={"bigrams": "table_VV"})
    return model
