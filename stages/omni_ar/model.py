"""What a model author writes for an autoregressive stage.

Shape legend: T tokens of the batch, Tp its prompt tokens, R rows (requests), D width, V vocabulary, P rotary axes, C prompt
columns, S step columns, E width of step rows, G code groups, n positions of one multimodal embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ArShape:
    """What the runner must know to allocate and to feed a model.

    hidden_width: width of the hidden states that `forward` returns. input_width: that of input embeddings, which are of the stage's
    dtype; None for the same. position_axes: 3 for M-RoPE, else 1.
    prompt_columns: id columns of a prompt, in order. step_columns: id columns that condition each decode step.
    step_width: width of the device rows that condition decode steps, such as another stage's hidden states; 0 for none. The
    model gets them in the stage's dtype.
    payload_width: width of the hidden states that `forward` stores for a consumer; 0 if it stores none.
    emits_tokens: whether it stores those of generated tokens too, one for each (`TokenHidden`), and not only those of prompts.
    max_positions: longest sequence the model was made for.
    logits_dtype: what `logits` returns, if it is not the stage's dtype: logits are kept as they are.
    forward_embeddings: names of the multimodal embeddings that `forward` reads besides `embed_prompt`; None: it may read any. Steps
    with others can be captured, and then show `forward` none.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_width: int
    vocab_size: int
    max_positions: int
    input_width: int | None = None
    position_axes: int = 1
    prompt_columns: tuple[str, ...] = ("ids",)
    step_columns: tuple[str, ...] = ()
    step_width: int = 0
    payload_width: int = 0
    emits_tokens: bool = False
    logits_dtype: torch.dtype | None = None
    forward_embeddings: tuple[str, ...] | None = None

    @property
    def conditioned(self) -> bool:
        """Whether decode steps have inputs besides the token."""
        return bool(self.step_columns) or self.step_width > 0


@dataclass(frozen=True, slots=True)
class PlacedEmbedding:
    """An embedding's tensors and where they belong. tokens_n: int64, indexes into the batch's prompt tokens (0 to Tp - 1).

    tensors: those of a floating dtype in the stage's, whatever their producer's.
    """

    name: str
    tokens_n: Tensor
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt tokens of a batch. columns_CT: int64 `[C, Tp]`."""

    columns_CT: Tensor
    embeddings: Sequence[PlacedEmbedding]


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Generated tokens that a batch embeds: of decode rows, or again of preempted requests.

    ids_R: sampled ids. columns_SR: conditioning ids of the step that each is the input of, `[S, R]`.
    codes_RD: what `predict_codes` returned as the next embedding; `[R, 0]` for a model without codes.
    rows_RE: the device rows that condition the steps, zeros where there is none; `[R, 0]` for a model without a `step_width`.
    """

    ids_R: Tensor
    columns_SR: Tensor
    codes_RD: Tensor
    rows_RE: Tensor


@dataclass(frozen=True, slots=True)
class PayloadSink:
    """Where the hidden states that a consumer needs go.

    slots_n: int64 page slots of the n tokens with which the batch begins; a null slot where nobody needs one. Of those behind them,
    nobody needs any.
    """

    pages: Tensor
    slots_n: Tensor

    def store(self, hidden_TD: Tensor) -> None:
        """Stores the needed rows of `hidden_TD` into the payload pages."""
        self.pages.flatten(0, 1).index_copy_(0, self.slots_n, hidden_TD[: self.slots_n.shape[0]])


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's batch as `forward` sees it: decode rows first, one token each, then chunks of other requests.

    positions_PT: int64 rotary positions. embeddings: of the prompt tokens, each with the part that stands in this step's chunk.
    prompt_start: of a batch with embeddings the first prompt token; before it stand decode rows and generated tokens of preempted
    requests, which run again. payload: None when nothing of this step is needed elsewhere.
    A captured batch has no embeddings, and may end in tokens that are nobody's.
    """

    positions_PT: Tensor
    attention: AttentionMetadata
    cache: KVCache
    backend: AttentionBackend
    prompt_start: int
    embeddings: Sequence[PlacedEmbedding] = field(default_factory=tuple)
    payload: PayloadSink | None = None


class ArModel(nn.Module, ABC):
    """A decoder. Everything here runs inside device phases: no synchronization, no control flow on tensor values."""

    @property
    @abstractmethod
    def shape(self) -> ArShape: ...

    @abstractmethod
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        """Input embeddings `[Tp, D]`."""

    @abstractmethod
    def embed_next(self, step: NextTokens) -> Tensor:
        """Input embeddings `[R, D]` of one decode token per row."""

    @abstractmethod
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Final hidden states `[T, hidden_width]`, normed as `logits` and `predict_codes` want them.

        Stores what `ArShape.payload_width` promises into `batch.payload`, when there is one.
        """

    @abstractmethod
    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]`, of the stage's dtype or of `ArShape.logits_dtype`."""


class DrawCode(Protocol):
    """Chooses one id per row from code logits, as each request wants it (`SamplingParams.code_temperature` and so on; a stage's own
    defaults are its family's to give), by the row's seed and position."""

    def __call__(self, logits_RV: Tensor, group: int) -> Tensor:
        """int64 `[R]`. group: the code group, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Codes:
    """One codec frame per row. codes_RG: int64, group 0 first. next_RD: the frame's contribution to the next input embedding."""

    codes_RG: Tensor
    next_RD: Tensor


@dataclass(frozen=True, slots=True)
class FrameEnd:
    """A frame whose first `groups` codes are all `code` ends its request. If all its codes are, it is dropped: its token has no
    frame, as a stop id has none. Else it is the request's last.

    Where a request's `min_tokens` or `ignore_eos` say that it goes on, it is a frame like any other.
    """

    code: int
    groups: int


class CodecModel(ArModel):
    """A decoder whose token is the first code of a frame and whose next input is made of all of the frame's codes."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Codes per frame, group 0 included."""

    @property
    @abstractmethod
    def next_width(self) -> int:
        """Width of `Codes.next_RD`."""

    @property
    def frame_end(self) -> FrameEnd | None:
        """None where tokens alone say what ends a request: the last token then has no frame. Otherwise a token is handed over when
        its frame is there, not before, and the last one that `max_tokens` allows has a frame like the others."""
        return None

    @abstractmethod
    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        """The frame that the tokens `code0_R`, sampled from `hidden_RD`, begin. On the critical path: the next step needs it."""

    @abstractmethod
    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames, as `predict_codes` gave it: a preempted request runs its frames again."""
