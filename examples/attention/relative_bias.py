"""A decoder with attention of its own over the paged cache: each head learns a bias for every distance.

Shape legend: T tokens, D width, R rows, Q query tokens of a row, L keys, H heads, W head width.
"""

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.attention import KVCache
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens

VOCABULARY, WIDTH, HEADS, LAYERS, DISTANCES, POSITIONS = 61, 32, 4, 2, 12, 256


class BiasedAttention(nn.Module):
    """Causal attention whose scores get the bias of their head and distance.

    Greater distances share the last bias.
    """

    def __init__(self, layer: int) -> None:
        super().__init__()
        self._layer = layer
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias = nn.Embedding(DISTANCES, HEADS)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        meta, cache = batch.attention, batch.cache
        q_THW, k_THW, v_THW = self.qkv(x_TD).unflatten(1, (3, HEADS, -1)).unbind(1)
        cache.write(self._layer, k_THW, v_THW, meta.slots_T)
        # Zeros: padding after the rows keeps them.
        y_THW = torch.zeros_like(q_THW)
        if meta.num_decode:
            decodes, lengths_R = slice(0, meta.num_decode), meta.decode_lengths_R
            table_RM = meta.decode_block_table_RM
            y_THW[decodes] = self._attend(q_THW[decodes, None], cache, table_RM, lengths_R)[:, 0]
        for row in meta.prefills:
            tokens = slice(row.start, row.start + row.query_length)
            length = row.context_length + row.query_length
            table_1M = row.block_table_M[None, : -(-length // cache.block_size)]
            lengths_1 = torch.full((1,), length, device=x_TD.device)
            y_THW[tokens] = self._attend(q_THW[None, tokens], cache, table_1M, lengths_1)[0]
        out_TD: Tensor = self.out(y_THW.flatten(1))
        return out_TD

    def _attend(
        self,
        q_RQHW: Tensor,
        cache: KVCache,
        table_RM: Tensor,
        lengths_R: Tensor,
    ) -> Tensor:
        """Attends the last Q tokens of each row, whose keys are in the cache already."""
        k_RHLW, v_RHLW = cache.gather(self._layer, table_RM, lengths_R)
        queries, keys = q_RQHW.shape[1], k_RHLW.shape[2]
        query_RQ = lengths_R[:, None] - queries + torch.arange(queries, device=q_RQHW.device)
        distance_RQL = query_RQ[..., None] - torch.arange(keys, device=q_RQHW.device)
        bias_RHQL = self.bias(distance_RQL.clamp(0, DISTANCES - 1)).movedim(3, 1)
        scores_RHQL = q_RQHW.transpose(1, 2) @ k_RHLW.mT * q_RQHW.shape[3] ** -0.5 + bias_RHQL
        # Not -inf: a row without tokens sees no key, and its softmax would be NaN.
        unseen = torch.finfo(scores_RHQL.dtype).min
        weights_RHQL = scores_RHQL.masked_fill(distance_RQL[:, None] < 0, unseen).softmax(-1)
        y_RQHW: Tensor = (weights_RHQL @ v_RHLW).transpose(1, 2)
        return y_RQHW


class BiasedLayer(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.attention = BiasedAttention(layer)
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        x_TD = x_TD + self.attention(self.attention_norm(x_TD), batch)
        y_TD: Tensor = x_TD + self.mlp(self.mlp_norm(x_TD))
        return y_TD


class RelativeBiasModel(ArModel):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(BiasedLayer(layer) for layer in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    @property
    def shape(self) -> ArShape:
        return ArShape(
            num_layers=LAYERS,
            num_kv_heads=HEADS,
            head_dim=WIDTH // HEADS,
            hidden_width=WIDTH,
            vocab_size=VOCABULARY,
            max_positions=POSITIONS,
            captures_prefills=False,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD: Tensor = self.table(prompt.columns_CT[0])
        return x_TD

    def embed_next(self, step: NextTokens) -> Tensor:
        x_RD: Tensor = self.table(step.ids_R)
        return x_RD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        for number, layer in enumerate(self.layers):
            if batch.layers is not None:
                batch.layers.store(number, x_TD)
            x_TD = layer(x_TD, batch)
        hidden_TD: Tensor = self.norm(x_TD)
        if batch.layers is not None:
            batch.layers.store(len(self.layers), hidden_TD)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD @ self.table.weight.T


def build(context: StageContext) -> RelativeBiasModel:
    with torch.device(context.device.torch_device):
        model = RelativeBiasModel().to(context.dtype)
    load_weights(model, context, prefixes={"model.": ""})
    return model
