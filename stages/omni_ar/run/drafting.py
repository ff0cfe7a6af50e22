"""The launches of a stage's drafter.

Shape legend: R rows of the batch, N rows of the stage, J positions of a row (its newest token and K drafts), T tokens of a step, P
chunks, H width of features, X width of the hidden states they are made of.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from omni.device import Device, Launch
from omni_ar.attention import AttentionBackend, KVCache
from omni_ar.drafters import DraftChunks, Drafter, DraftRows, FeatureShape, PagedDrafter, RowPages
from omni_ar.kernels.step.draft_state import DraftState
from omni_ar.model import Batch, LayerSink
from omni_ar.run.limits import Limits
from omni_ar.run.phases import (
    draft_tokens,
    drop_drafts,
    drop_features,
    follow_tokens,
    keep_chunk_features,
    keep_features,
    prefill_drafts,
)
from omni_ar.run.plan import BatchShape
from omni_ar.run.state import Resources


@dataclass(frozen=True, slots=True)
class FeatureBuffers:
    """Hidden states of the stage for its drafter. shape: of the states that the drafter reads.

    states_TX: of the tokens of one step, `FeatureShape.layers` side by side. features_TH: the drafter's features of them. rows_NJH,
    first_N: `RowPages.features_NJH` and `first_N`.
    """

    shape: FeatureShape
    states_TX: Tensor
    features_TH: Tensor
    rows_NJH: Tensor
    first_N: Tensor

    @classmethod
    def allocate(
        cls, device: Device, shape: FeatureShape, limits: Limits, dtype: torch.dtype, width: int
    ) -> "FeatureBuffers":
        """width: of one hidden state."""
        tokens, rows = limits.step_tokens, limits.null_row + 1
        return cls(
            shape=shape,
            states_TX=device.zeros((tokens, len(shape.layers) * width), dtype),
            features_TH=device.zeros((tokens, shape.width), dtype),
            rows_NJH=device.zeros((rows, limits.step_ids, shape.width), dtype),
            first_N=device.zeros((rows,), torch.int64),
        )


class Drafting:
    """Makes launches for a drafter's part of a step, without launching them."""

    def __init__(self, stage: Resources, drafter: Drafter, backend: AttentionBackend) -> None:
        """backend: for the drafter's own keys and values."""
        self._stage = stage
        self._drafter = drafter
        self._drafts_late = stage.limits.drafts_late
        self._paged = drafter if isinstance(drafter, PagedDrafter) else None
        self._backend = backend
        shape = self._paged.feature_shape if self._paged is not None else None
        self._features: FeatureBuffers | None = None
        if shape is not None:
            width = stage.model.shape.hidden_width
            self._features = FeatureBuffers.allocate(stage.device, shape, stage.limits, stage.dtype, width)

    def decode_launches(self, rows_R: Tensor, blocks: int, cache: KVCache | None, drafts: int) -> list[Launch]:
        """Before the forward of a step without chunks. cache: `Pages.drafts`. drafts: number that the step verifies of each row."""
        if self._paged is not None and not drafts:
            # Its passes take time, and no row wants drafts.
            return self._drop_launches(rows_R)
        return [] if self._drafts_late else self.draft_launches(rows_R, blocks, cache)

    def draft_launches(self, rows_R: Tensor, blocks: int, cache: KVCache | None) -> list[Launch]:
        """Makes drafts after the rows' newest tokens: at the end of a step if they are late, else at the head of the next one."""
        return [Launch.of(draft_tokens, self._drafter, self._rows(rows_R, blocks, cache))]

    def follow_launches(self, rows_R: Tensor, blocks: int, cache: KVCache | None) -> list[Launch]:
        """The drafter's keys and values of decode rows beside chunks. With late drafts, the step before has written them."""
        if self._drafts_late:
            return self._drop_launches(rows_R)
        if self._paged is None:
            return []
        return [Launch.of(follow_tokens, self._paged, self._rows(rows_R, blocks, cache))]

    def prefill_launches(self, batch: Batch, rows_P4: Tensor, shape: BatchShape, cache: KVCache | None) -> list[Launch]:
        """The drafter's keys and values of chunks' tokens, after the forward of `batch`."""
        if self._paged is None:
            return []
        assert cache is not None
        buffers, decodes, total = self._stage.buffers, shape.decodes, shape.total
        features = self._features
        chunks = DraftChunks(
            batch=replace(
                batch, cache=cache, backend=self._backend, embeddings=(), payload=None, layers=None, boundary=None
            ),
            rows_P4=rows_P4,
            ids_R=buffers.ids_N[:decodes],
            lengths_R=buffers.lengths_N[:decodes],
            text_NL=self._drafts.text,
            features_TH=features.features_TH[:total] if features is not None else None,
        )
        states_TX = features.states_TX[:total] if features is not None else None
        return [Launch.of(prefill_drafts, self._paged, chunks, states_TX)]

    def keep_launches(self, rows_R: Tensor, drafts: int) -> list[Launch]:
        """Keeps the features of the tokens and drafts of a step without chunks, which the next step's drafts need. A step without
        drafts makes no features, and earlier ones are obsolete after it."""
        features = self._features
        if features is None:
            return []
        if not drafts:
            return [Launch.of(drop_features, rows_R, features.first_N)]
        assert self._paged is not None
        count = rows_R.shape[0] * (1 + drafts)
        length_N = self._stage.rows.columns.length
        return [Launch.of(keep_features, self._paged, features.states_TX[:count], rows_R, length_N, *self._kept)]

    def keep_chunk_launches(self, rows_R: Tensor, rows_P4: Tensor) -> list[Launch]:
        """As `keep_launches`, of decode rows and of the last token of each chunk, after `prefill_launches`."""
        features = self._features
        if features is None:
            return []
        length_N, null_row = self._stage.rows.columns.length, self._stage.limits.null_row
        given = (features.features_TH, rows_R, length_N, rows_P4, null_row)
        return [Launch.of(keep_chunk_features, *given, *self._kept)]

    def _drop_launches(self, rows_R: Tensor) -> list[Launch]:
        """Drops late drafts that the step of the rows does not verify. The acceptance rate of the rows does not change."""
        return [Launch.of(drop_drafts, self._drafts, rows_R)] if self._drafts_late else []

    @property
    def sink(self) -> LayerSink | None:
        """The destination of the forward's hidden states; None if the drafter reads none."""
        features = self._features
        return LayerSink(features.shape.layers, features.states_TX[None], None) if features is not None else None

    @property
    def _kept(self) -> tuple[Tensor, Tensor]:
        assert self._features is not None
        return self._features.rows_NJH, self._features.first_N

    def _rows(self, rows_R: Tensor, blocks: int, cache: KVCache | None) -> DraftRows:
        state, drafts, pages = self._stage.rows, self._drafts, None
        if self._paged is not None:
            assert cache is not None
            pages = RowPages(
                cache=cache,
                backend=self._backend,
                columns=state.columns,
                block_table_NM=state.block_table,
                blocks=blocks,
                features_NJH=self._features.rows_NJH if self._features is not None else None,
                first_N=self._features.first_N if self._features is not None else None,
            )
        return DraftRows(
            rows_R=rows_R,
            text_NL=drafts.text,
            length_N=state.columns.length,
            drafts_NK=drafts.drafts,
            proposed_N=drafts.columns.proposed,
            pages=pages,
        )

    @property
    def _drafts(self) -> DraftState:
        assert self._stage.rows.drafts is not None, "of a stage with a drafter"
        return self._stage.rows.drafts
