"""Drafts by a model: a smaller one with the vocabulary of the stage's, or heads over its hidden states.

Each *entry* of a row is one pair of a token and, for heads, the features of the token before it. Entry s has the keys and values of
slot s: of token s for a smaller model, of token s + 1 and the features of token s for heads.

Shape legend: as in `omni_ar.drafters.base`; E entries of a row in one pass.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from omni.stage import module_bytes, returned_tensor
from omni_ar.attention import AttentionMetadata
from omni_ar.drafters.base import CacheShape, DraftChunks, DraftRows, FeatureShape, PagedDrafter, RowPages
from omni_ar.model import Batch, PassWeights


class DraftModel(nn.Module, ABC):
    """A model whose likeliest ids are drafts. All methods run in device phases: no synchronization, no control flow on tensor
    values."""

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape: ...

    @property
    def pass_weights(self) -> PassWeights:
        """See `PagedDrafter.pass_weights`. By default all weights of the model."""
        return PassWeights(module_bytes(self), self.cache_shape.num_layers)

    @property
    def feature_shape(self) -> FeatureShape | None:
        """None for a model that reads tokens alone."""
        return None

    @property
    def max_positions(self) -> int | None:
        """Maximum number of entries of a row that the model may draft from; None if it is at least the stage's maximum."""
        return None

    def features(self, states_TX: Tensor) -> Tensor:
        """See `PagedDrafter.features`."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        """Hidden states `[T, D]` of a batch of entries, decode rows first. They are the features of the next entry, where that is
        of a draft. features_TH: None without a `feature_shape`."""

    @abstractmethod
    def propose(self, hidden_RD: Tensor) -> Tensor:
        """The likeliest id, int64 `[R]`, after each entry, in the vocabulary of the stage."""


_OVERHEAD_LAYERS = 3
"""Number of layers that take as long as a pass's work besides its model: 30 small operations, of 1 to 2 us each. Three passes of
an EAGLE-3 head are so assumed to take 0.18 of a step of a dense model of 8 billion parameters, and take 0.20
(benchmarks/results/2026-11-28-drafts-h200.md)."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of rows as the decode rows of one batch. index_RE: their slots. valid_RE: those that are run; others are padding."""

    index_RE: Tensor
    valid_RE: Tensor
    ids_RE: Tensor
    features_REH: Tensor | None


class ModelDrafter(PagedDrafter):
    """Drafts of a `DraftModel`: its likeliest id after the newest token, the likeliest after that, and so on."""

    def __init__(self, model: DraftModel, drafts: int) -> None:
        """drafts: K, the maximum number of drafts of a row in one step."""
        self._model = model
        self._drafts = drafts
        self._max_positions = model.max_positions
        self._has_features = model.feature_shape is not None
        self._shift = int(self._has_features)
        """Index of an entry's token, less that of the entry."""

    @property
    def cache_shape(self) -> CacheShape:
        return self._model.cache_shape

    @property
    def weight_bytes(self) -> int:
        return module_bytes(self._model)

    @property
    def pass_weights(self) -> PassWeights:
        weights = self._model.pass_weights
        return replace(weights, layers=weights.layers + _OVERHEAD_LAYERS)

    @property
    def feature_shape(self) -> FeatureShape | None:
        return self._model.feature_shape

    def features(self, states_TX: Tensor) -> Tensor:
        return self._model.features(states_TX)

    def draft(self, rows: DraftRows) -> None:
        hidden_RD, ready_R = self._follow(rows)
        pages = _pages(rows)
        columns, rows_R = pages.columns, rows.rows_R
        newest_R = rows.length_N.index_select(0, rows_R)
        remaining_R = (columns.limit - columns.outputs).index_select(0, rows_R) - 1
        ids_R = self._propose(hidden_RD)
        drafts = [ids_R]
        for number in range(1, self._drafts):
            entries = _Entries(
                index_RE=(newest_R - self._shift + number)[:, None],
                valid_RE=(ready_R & (number <= remaining_R))[:, None],
                ids_RE=ids_R[:, None],
                features_REH=hidden_RD[:, None] if self._has_features else None,
            )
            hidden_RD = self._run(entries, rows)[:, 0]
            ids_R = self._propose(hidden_RD)
            drafts.append(ids_R)
        rows.drafts_NK.index_copy_(0, rows_R, torch.stack(drafts, 1))
        proposed_R = ready_R.long() * self._drafts
        if self._max_positions is not None:
            # A draft comes from an entry, the first from the newest one.
            remaining_R = self._max_positions - (newest_R - self._shift)
            proposed_R = torch.minimum(proposed_R, remaining_R.clamp(min=0))
        rows.proposed_N.index_copy_(0, rows_R, proposed_R)

    def follow(self, rows: DraftRows) -> None:
        self._follow(rows)

    def prefill(self, chunks: DraftChunks) -> None:
        meta = chunks.batch.attention
        row_T, index_T = _chunk_tokens(chunks.rows_P4, meta.slots_T.shape[0])
        # After the last token of a prompt there is none yet: that entry is written again by `draft`.
        ids_T = chunks.text_NL[row_T, index_T + self._shift].long().clamp(min=0)
        ids_T[: meta.num_decode] = chunks.ids_R
        index_T[: meta.num_decode] = (chunks.lengths_R - 1).clamp(min=0)
        self._model(ids_T, chunks.features_TH, replace(chunks.batch, positions_PT=index_T[None]))

    def _propose(self, hidden_RD: Tensor) -> Tensor:
        given, code = self._model.propose(hidden_RD), self._model.propose
        shape, hint = (hidden_RD.shape[0],), "return the likeliest id after each entry"
        return returned_tensor(given, "propose", code=code, shape=shape, dtype=torch.int64, hint=hint)

    def _follow(self, rows: DraftRows) -> tuple[Tensor, Tensor]:
        """Runs the entries of tokens that are new since the last step. Returns the hidden states `[R, D]` of each row's newest
        entry, and whether there is one, `[R]`."""
        pages = _pages(rows)
        rows_R = rows.rows_R
        active_R = pages.columns.active.index_select(0, rows_R) != 0
        newest_R = rows.length_N.index_select(0, rows_R) - self._shift  # the newest entry
        if self._has_features:
            assert pages.features_NJH is not None
            assert pages.first_N is not None
            features_REH = pages.features_NJH.index_select(0, rows_R)
            first_R, count = pages.first_N.index_select(0, rows_R), features_REH.shape[1]
        else:
            # The last draft of the step before may have been accepted, and its entry was not run.
            features_REH, first_R, count = None, newest_R - 1, 2
        index_RE = first_R[:, None] + torch.arange(count, device=rows_R.device)
        valid_RE = active_R[:, None] & (index_RE <= newest_R[:, None])
        # Of a row without features, `first_N` is far beyond its text.
        at_RE = (index_RE + self._shift).clamp(max=rows.text_NL.shape[1] - 1)
        ids_RE = rows.text_NL[rows_R[:, None], at_RE].long()
        hidden_RED = self._run(_Entries(index_RE, valid_RE, ids_RE, features_REH), rows)
        last_R = newest_R - first_R
        ready_R = active_R & (last_R >= 0)
        at_R11 = last_R.clamp(min=0)[:, None, None].expand(-1, 1, hidden_RED.shape[2])
        return hidden_RED.gather(1, at_R11).squeeze(1), ready_R

    def _run(self, entries: _Entries, rows: DraftRows) -> Tensor:
        """Runs the entries. Returns hidden states `[R, E, D]`. Attention treats each entry as a row of its own."""
        pages = _pages(rows)
        size, count = pages.cache.block_size, entries.index_RE.shape[1]
        index_RE = entries.index_RE.clamp(min=0)
        table_RM = pages.block_table_NM.index_select(0, rows.rows_R)
        block_RE = table_RM.gather(1, (index_RE // size).clamp(max=table_RM.shape[1] - 1))
        slots_RE = (block_RE * size + index_RE % size).where(entries.valid_RE, 0)
        slots_T = slots_RE.flatten()
        meta = AttentionMetadata(
            slots_T=slots_T,
            num_decode=slots_T.shape[0],
            decode_block_table_RM=table_RM[:, : pages.blocks].repeat_interleave(count, 0),
            decode_lengths_R=(index_RE + 1).where(entries.valid_RE, 0).flatten(),
            decode_max_length=pages.blocks * size,
            decode_positions=count,
            block_table_NM=pages.block_table_NM,
        )
        batch = Batch(
            positions_PT=index_RE.where(entries.valid_RE, 0).flatten()[None],
            attention=meta,
            cache=pages.cache,
            backend=pages.backend,
            prompt_start=0,
        )
        ids_T = entries.ids_RE.where(entries.valid_RE, 0).flatten()
        features = entries.features_REH
        hidden_TD: Tensor = self._model(ids_T, features.flatten(0, 1) if features is not None else None, batch)
        return hidden_TD.view(-1, count, hidden_TD.shape[1])


def _pages(rows: DraftRows) -> RowPages:
    assert rows.pages is not None, "of a PagedDrafter"
    return rows.pages


def _chunk_tokens(rows_P4: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The row of each of a batch's tokens, and its index in the row. Both are 0 for a token outside of all chunks."""
    row_P, start_P, length_P, context_P = rows_P4.unbind(1)
    token_T1 = torch.arange(total, device=rows_P4.device)[:, None]
    inside_TP = (token_T1 >= start_P) & (token_T1 < start_P + length_P)
    index_TP = token_T1 - start_P + context_P
    return (inside_TP * row_P).sum(1), (inside_TP * index_TP).sum(1)
