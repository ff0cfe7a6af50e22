"""A small random text model on the autoregressive stage's contract, and the same model as a reference implementation.

Shape legend: T tokens, R rows, D width, V vocabulary, H query heads, K key heads, W head width.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from omni.sampling import LogitsEdit, StopVerdict
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens

WIDTH, HEADS, KV_HEADS, HEAD, LAYERS = 24, 4, 2, 6, 2


def random_matrix(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns, generator=generator) * columns**-0.5, requires_grad=False)


class SmallLayers(nn.Module):
    """Learned positions, grouped-query attention, one feed-forward matrix; no norms, which would hide a wrong scale."""

    def __init__(self, positions: int, generator: torch.Generator) -> None:
        super().__init__()

        def each_layer(rows: int, columns: int) -> nn.ParameterList:
            return nn.ParameterList(random_matrix(rows, columns, generator) for _ in range(LAYERS))

        self.places = random_matrix(positions, WIDTH, generator)
        self.queries, self.keys, self.values = (
            each_layer(heads * HEAD, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        self.outs, self.feeds = each_layer(WIDTH, HEADS * HEAD), each_layer(WIDTH, WIDTH)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        x_TD = x_TD + self.places[batch.positions_PT[0]]
        for layer in range(LAYERS):
            if batch.layers is not None:
                batch.layers.store(layer, x_TD)
            q_THW = (x_TD @ self.queries[layer].T).unflatten(1, (HEADS, HEAD))
            k_TKW = (x_TD @ self.keys[layer].T).unflatten(1, (KV_HEADS, HEAD))
            v_TKW = (x_TD @ self.values[layer].T).unflatten(1, (KV_HEADS, HEAD))
            batch.cache.write(layer, k_TKW, v_TKW, batch.attention.slots_T)
            attended_THW = batch.backend.attend(q_THW, batch.cache, layer, batch.attention)
            x_TD = x_TD + attended_THW.flatten(1) @ self.outs[layer].T
            x_TD = x_TD + torch.tanh(x_TD @ self.feeds[layer].T)
        if batch.payload is not None:
            batch.payload.store(x_TD)
        if batch.layers is not None:
            batch.layers.store(LAYERS, x_TD)
        return x_TD

    def whole(self, x_TD: Tensor) -> Tensor:
        """The same in one piece, without a cache."""
        length = x_TD.shape[0]
        x_TD = x_TD + self.places[:length]
        future_TT = torch.ones(length, length, dtype=torch.bool).triu(1)
        for layer in range(LAYERS):
            q_HTW = (self.queries[layer] @ x_TD.T).view(HEADS, HEAD, -1).transpose(1, 2)
            k_HTW, v_HTW = (
                (weight[layer] @ x_TD.T)
                .view(KV_HEADS, HEAD, -1)
                .transpose(1, 2)
                .repeat_interleave(HEADS // KV_HEADS, 0)
                for weight in (self.keys, self.values)
            )
            scores_HTT = (q_HTW @ k_HTW.transpose(1, 2) / math.sqrt(HEAD)).masked_fill(future_TT, -math.inf)
            mixed_THW = (scores_HTT.softmax(-1) @ v_HTW).transpose(0, 1)
            x_TD = x_TD + mixed_THW.flatten(1) @ self.outs[layer].T
            x_TD = x_TD + torch.tanh(x_TD @ self.feeds[layer].T)
        return x_TD


class SmallText(ArModel):
    """Embeddings, `SmallLayers`, a head."""

    def __init__(
        self, vocab: int = 61, positions: int = 96, *, payload: bool = False, emits_tokens: bool = False
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(vocab)
        self.vocab, self.positions, self.payload, self.emits_tokens = vocab, positions, payload, emits_tokens
        self.embeddings = random_matrix(vocab, WIDTH, generator)
        self.layers = SmallLayers(positions, generator)
        self.head = random_matrix(vocab, WIDTH, generator)
        self.poison: int | None = None
        """A batch size that `forward` cannot stand."""
        self.bad_id: int | None = None
        """An id that cannot be embedded. Looking for it synchronizes."""

    @property
    def shape(self) -> ArShape:
        return ArShape(
            num_layers=LAYERS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD,
            hidden_width=WIDTH,
            vocab_size=self.vocab,
            max_positions=self.positions,
            payload_width=WIDTH if self.payload else 0,
            emits_tokens=self.emits_tokens,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return self._embed(prompt.columns_CT[0])

    def embed_next(self, step: NextTokens) -> Tensor:
        return self._embed(step.ids_R)

    def _embed(self, ids_T: Tensor) -> Tensor:
        if self.bad_id is not None and self.bad_id in ids_T:
            raise ValueError("bad id")
        return self.embeddings[ids_T]

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        if self.poison == x_TD.shape[0]:
            raise ValueError("poisoned")
        hidden_TD: Tensor = self.layers(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD @ self.head.T

    def whole(self, ids: Sequence[int]) -> Tensor:
        """Hidden states `[T, D]` of a sequence in one piece, without a cache."""
        return self.layers.whole(self.embeddings[list(ids)])


def greedy(
    model: SmallText,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    stops: Sequence[int] = (),
    penalty: float = 1.0,
    suppressed: Sequence[int] = (),
) -> list[int]:
    """Greedy tokens, everything recomputed for each."""
    made: list[int] = []
    while len(made) < max_tokens:
        scores = (model.head @ model.whole([*prompt, *made])[-1]).tolist()
        for seen in {*prompt, *made}:
            scores[seen] = scores[seen] / penalty if scores[seen] > 0 else scores[seen] * penalty
        for never in suppressed:
            scores[never] = -math.inf
        made.append(max(range(len(scores)), key=scores.__getitem__))
        if made[-1] in stops:
            break
    return made


# Rules of the host by token ids alone: a host processor with a memory, and ends that take two tokens.


class NothingTwice:
    """Forbids the last `memory` tokens, and ids beyond `vocab`'s first half in every third token; ends a request after `most`."""

    def __init__(self, vocab: int, memory: int = 3, most: int = 1000) -> None:
        self._vocab, self._memory, self._most = vocab, memory, most
        self._said: list[int] = []

    def edit(self) -> LogitsEdit:
        ids = np.array(self._said[-self._memory :], np.int64)
        bias = np.full(len(ids), -np.inf, np.float32)
        if len(self._said) % 3:
            return LogitsEdit(ids=ids, bias=bias)
        bits = np.zeros(-(-self._vocab // 64) * 64, np.uint8)
        bits[: self._vocab // 2] = 1
        return LogitsEdit(np.packbits(bits, bitorder="little").view(np.int64), ids, bias)

    def push(self, token: int) -> bool:
        self._said.append(token)
        return len(self._said) >= self._most


class TwoInARow:
    """A text ends with two tokens in a row out of `ids`."""

    def __init__(self, ids: frozenset[int]) -> None:
        self._ids = ids
        self._last = -1

    def push(self, token: int) -> StopVerdict:
        last, self._last = self._last, token
        if token not in self._ids:
            return StopVerdict(0, False)
        return StopVerdict(2, True) if last in self._ids else StopVerdict(1, False)
