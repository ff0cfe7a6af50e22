"""The contract of drafters, which plugins provide and a stage selects by name (`ArOptions.drafter`).

Shape legend: R rows of the batch, N rows of the stage, L tokens of a row, K drafts of a row, T tokens of a batch, P chunks, M
blocks of a row, J positions of a row (its newest token and K drafts), H width of features, X width of the hidden states they are
made of.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omni.sampling import SamplingParams
from omni.stage import StageContext
from omni_ar.attention import AttentionBackend, KVCache
from omni_ar.kernels.step.state import RowFields
from omni_ar.model import ArModel, Batch, PassWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSetup:
    """The stage of a drafter. drafts: K. max_model_len: maximum tokens of a request. model: the stage's. context: for drafters that
    load weights."""

    drafts: int
    vocab_size: int
    max_model_len: int
    model: ArModel
    context: StageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The keys and values of a drafter's layers for one token."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShape:
    """The hidden states of the stage that a drafter reads.

    layers: numbers of the hidden states, as in `ArOptions.hidden_layers`. width: H, of the features that `PagedDrafter.features`
    makes of them.
    """

    layers: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPages:
    """Device state of a step's rows, for a drafter with its own keys and values.

    cache: keys and values of the drafter's layers, in blocks that have the numbers of the stage's. columns: the fields of every row
    of the stage; only an `active` row may write, and at most `limit - outputs - 1` positions after its newest token.
    block_table_NM: blocks of every row. blocks: maximum number of blocks in use of a row of the batch. features_NJH: features of
    the newest tokens that the stage's forward has run for each row; first_N: int64, index of the first of these tokens. Both None
    for a drafter without features.
    """

    cache: KVCache
    backend: AttentionBackend
    columns: RowFields[Tensor]
    block_table_NM: Tensor
    blocks: int
    features_NJH: Tensor | None
    first_N: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The rows of a decode step, or those that a step has sampled, on the device. Read only, but for `drafts_NK` and `proposed_N`.

    rows_R: int64, indexes of the rows in the stage. text_NL: int32, prompt and output of every row of the stage; after them the
    text that `Drafter.predicted_tokens` gave, then -1; the last column has no meaning. length_N: int64, index of the newest token.
    drafts_NK: int64, the drafts to be written: ids of the stage's vocabulary; a draft outside of the vocabulary, and all drafts
    after it, are not verified. proposed_N: int64, their number, to be written for each row of the batch. pages: of a
    `PagedDrafter`.
    """

    rows_R: Tensor
    text_NL: Tensor
    length_N: Tensor
    drafts_NK: Tensor
    proposed_N: Tensor
    pages: RowPages | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftChunks:
    """A step with prefill chunks, after the stage's forward, on the device.

    batch: that of the forward, with the drafter's keys and values: first the decode rows' newest tokens, then the chunks' tokens,
    then perhaps padding. rows_P4: int64, row, first token in the batch, length and context of each chunk; a length of 0 is unused.
    ids_R, lengths_R: int64, the decode rows' tokens, and the number of tokens up to them. text_NL: as in `DraftRows`. features_TH:
    None for a drafter without features.
    """

    batch: Batch
    rows_P4: Tensor
    ids_R: Tensor
    lengths_R: Tensor
    text_NL: Tensor
    features_TH: Tensor | None


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A request, on the host. ids_T: the prompt's token ids. sampling: complete. sample_index: index among its samples."""

    ids_T: NDArray[np.int64]
    sampling: SamplingParams
    sample_index: int


class Drafter(ABC):
    """Guesses the next tokens of rows. One object per stage. Drafts affect the number of tokens that a step gives, never the tokens
    themselves."""

    @abstractmethod
    def draft(self, rows: DraftRows) -> None:
        """Writes the drafts of each row of the batch, the likeliest text first, and their number. Drafts that are not verified in
        this step are made again in the next.

        Runs inside a device phase, at the head of the step that verifies the drafts, with pipeline parallelism at the end of the
        one before, and may be captured: no synchronization, no control flow on tensor values, and no result of one row that depends
        on another. A row may be in the batch several times, if it is finished.
        """

    def predicted_tokens(self, request: DraftRequest, outputs: Sequence[int]) -> Sequence[int]:
        """Token ids that may follow a request's first outputs, for `DraftRows.text_NL`; called when its row starts, and again when
        it starts again after a preemption. On the host; must be fast."""
        return ()

    def finished(self, request: DraftRequest, outputs: Sequence[int]) -> None:  # noqa: B027 - most need no more
        """Called with the outputs of a request that has ended by itself, before they reach the user. On the host; must be fast."""


class PagedDrafter(Drafter):
    """A drafter with weights, and with keys and values of its own. Their pages belong to the stage's KV blocks, so they are
    allocated, freed and found in the prefix cache together with the stage's. Keys and values after a row's newest token may be
    written for any draft: they are overwritten before they are read.

    `draft` runs in steps that verify drafts; with pipeline parallelism, after their tokens and those of prompts. Among steps
    without drafts, only those with prefill chunks access its pages.
    """

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape: ...

    @property
    @abstractmethod
    def weight_bytes(self) -> int: ...

    @property
    def pass_weights(self) -> PassWeights:
        """The weights that a pass reads, which makes one draft: the stage compares it with a step of its own, to decide whether
        drafts are worth their time. By default all weights of the drafter."""
        return PassWeights(self.weight_bytes, self.cache_shape.num_layers)

    @property
    def feature_shape(self) -> FeatureShape | None:
        """None if it reads no hidden states of the stage."""
        return None

    def features(self, states_TX: Tensor) -> Tensor:
        """`[T, H]` of hidden states of `FeatureShape.layers`, side by side. In a device phase, after the stage's forward."""
        raise NotImplementedError

    @abstractmethod
    def follow(self, rows: DraftRows) -> None:
        """Writes the keys and values of the rows' newest tokens, as `draft` does before it makes drafts. For decode rows of a step
        with chunks. `drafts_NK` and `proposed_N` are not to be written. As `draft` otherwise, but never captured."""

    @abstractmethod
    def prefill(self, chunks: DraftChunks) -> None:
        """Writes the keys and values of prefill chunks' tokens. A device phase that may be captured."""
