"""The interface of a model for an autoregressive stage.

Shape legend: T tokens of the batch, Tp its prompt tokens, R rows (requests), D width, V vocabulary, P rotary axes, C prompt
columns, S step columns, E width of step vectors, G code groups, n positions of one multimodal embedding.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from omni_ar.attention import AttentionBackend, AttentionMetadata, KVCache


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A mixture of experts, whose tokens choose some of the weights, so that more tokens read more. num_experts: of a layer.
    top_k: of them that a token uses. weights: size of all experts of all layers, over that of the other weights that a decode
    step reads."""

    num_experts: int
    top_k: int
    weights: float

    def share_used(self, tokens: int) -> float:
        """The share of the experts that so many tokens use together, on average, if each chooses at random."""
        return 1.0 - (1.0 - self.top_k / self.num_experts) ** tokens


@dataclass(frozen=True, slots=True)
class PassWeights:
    """The weights that a pass of a model over tokens reads. bytes: of all that any token uses. layers: number of layers that run,
    and of what takes as long besides. experts: None if each token uses all weights."""

    bytes: int
    layers: int
    experts: ExpertShape | None = None

    def read(self, tokens: int) -> float:
        """Bytes that so many tokens read together, on average, if each chooses experts at random."""
        experts = self.experts
        if experts is None:
            return self.bytes
        return self.bytes * (1.0 + experts.weights * experts.share_used(tokens)) / (1.0 + experts.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArShape:
    """The sizes of a model, for the runner's allocations and inputs.

    num_layers: of the whole model. kv_layers: layers whose keys and values are here; None for all. hidden_width: of the hidden
    states that `forward` returns. input_width: of input embeddings, which have the stage's dtype; None for the same. position_axes:
    3 for M-RoPE, else 1. prompt_columns: id columns of a prompt, in order. step_columns: id columns that condition each decode
    step. step_width: width of the vectors that condition decode steps, such as another stage's hidden states, in the stage's dtype;
    0 for none. payload_width: width of the hidden states that `forward` stores for a consumer; 0 for none. emits_tokens: whether it
    also stores that of each generated token (`TokenHidden`). max_positions: maximum sequence length. logits_dtype: of `logits`, if
    not the stage's dtype; logits are not converted. forward_embeddings: names of the multimodal embeddings that `forward` reads
    besides `embed_prompt`; None if it may read any. Steps with other embeddings can be captured; a captured `forward` receives
    none. captures_prefills: whether `forward` supports prefill rows that only the device knows, as a captured one gets them
    (`AttentionMetadata`). `AttentionBackend.attend` does; attention of the model's own may not. experts: None for a dense model.
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
    captures_prefills: bool = True
    experts: ExpertShape | None = None
    kv_layers: int | None = None

    @property
    def num_kv_layers(self) -> int:
        return self.num_layers if self.kv_layers is None else self.kv_layers

    @property
    def conditioned(self) -> bool:
        """Whether decode steps have inputs besides the token."""
        return bool(self.step_columns) or self.step_width > 0


@dataclass(frozen=True, slots=True)
class PlacedEmbedding:
    """An embedding's tensors by name, floating-point ones in the stage's dtype. tokens_n: int64, indexes into the batch's prompt
    tokens."""

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
    """Generated tokens that a batch embeds: those of decode rows, and replayed ones of preempted requests.

    ids_R: sampled ids. columns_SR: `[S, R]`, conditioning ids of the steps whose inputs the tokens are.
    codes_RD: `Codes.next_RD` of the tokens' frames; `[R, 0]` for a model without codes.
    vectors_RE: vectors that condition the steps, zeros for steps without one; `[R, 0]` for a model without a `step_width`.
    """

    ids_R: Tensor
    columns_SR: Tensor
    codes_RD: Tensor
    vectors_RE: Tensor


@dataclass(frozen=True, slots=True)
class PayloadSink:
    """The destination of hidden states that a consumer needs. slots_n: int64, page slots of the batch's first n tokens; a slot of
    the null block for a token whose hidden state is not needed. Those of later tokens are not needed."""

    pages: Tensor
    slots_n: Tensor

    def store(self, hidden_TD: Tensor) -> None:
        """Stores the needed hidden states into the payload pages."""
        self.pages.flatten(0, 1).index_copy_(0, self.slots_n, hidden_TD[: self.slots_n.shape[0]])


@dataclass(frozen=True, slots=True)
class LayerSink:
    """The destination of hidden states of layers, for `ArOptions.hidden_layers`.

    layers: their numbers. pages: `[blocks, block_size, L * D]`. slots_T: int64, the slot of each token of the batch; None for the
    first T slots. also: a second destination, as for a drafter. stored: layers of which `forward` has stored some.
    """

    layers: tuple[int, ...]
    pages: Tensor
    slots_T: Tensor | None
    also: "LayerSink | None" = None
    stored: set[int] = field(default_factory=set)

    def takes(self, layer: int) -> bool:
        return layer in self.layers or (self.also is not None and self.also.takes(layer))

    def store(self, layer: int, hidden_TD: Tensor) -> None:
        """Stores the states of a layer; a no-op for one that is not kept."""
        for index, kept in enumerate(self.layers):
            if kept == layer:
                width = hidden_TD.shape[1]
                columns = self.pages.flatten(0, 1)[:, index * width : (index + 1) * width]
                if self.slots_T is None:
                    columns[: hidden_TD.shape[0]].copy_(hidden_TD)
                else:
                    columns.index_copy_(0, self.slots_T, hidden_TD.to(columns.dtype))
                self.stored.add(layer)
        if self.also is not None:
            self.also.store(layer, hidden_TD)

    def check(self) -> None:
        """Raises RuntimeError if `forward` has stored nothing of a layer that is kept."""
        if self.also is not None:
            self.also.check()
        missing = [layer for layer in self.layers if layer not in self.stored]
        if missing:
            raise RuntimeError(
                f"forward stored no hidden states of layers {missing} (Batch.layers): this model cannot keep them"
            )


@dataclass(frozen=True, slots=True)
class PipelineBoundary:
    """The hidden states that pass from the rank with the layers before to this one, and from this one to the next (pipeline
    parallelism). Entry 0 is the residual stream, the next ones are inputs of earlier layers that the last rank stores.

    received, sent: `[1 + n, T, D]`; None at the first and at the last rank. received_layers, sent_layers: the numbers of the n
    layers."""

    received: Tensor | None
    sent: Tensor | None
    received_layers: tuple[int, ...] = ()
    sent_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's batch as input of `forward`: decode rows first, one token each, then chunks of other requests.

    positions_PT: int64 rotary positions. embeddings: of the prompt tokens, each with its part in this step's chunk. prompt_start:
    index of the first prompt token of a batch with embeddings, after decode rows and replayed tokens. payload: None if no consumer
    needs hidden states of this step. layers: None if no hidden states of layers are kept. boundary: None if this rank has all
    layers. A captured batch has no embeddings, and may end in padding.
    """

    positions_PT: Tensor
    attention: AttentionMetadata
    cache: KVCache
    backend: AttentionBackend
    prompt_start: int
    embeddings: Sequence[PlacedEmbedding] = field(default_factory=tuple)
    payload: PayloadSink | None = None
    layers: LayerSink | None = None
    boundary: PipelineBoundary | None = None


class ArModel(nn.Module, ABC):
    """A decoder. All methods run inside device phases: no synchronization, no control flow on tensor values."""

    @property
    @abstractmethod
    def shape(self) -> ArShape: ...

    @abstractmethod
    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        """Input embeddings `[Tp, D]`."""

    @abstractmethod
    def embed_next(self, step: NextTokens) -> Tensor:
        """Input embeddings `[R, D]` of generated tokens."""

    @abstractmethod
    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Final hidden states `[T, hidden_width]`, normalized for `logits` and `predict_codes`. Stores the hidden states of
        `ArShape.payload_width` into `batch.payload`, unless that is None."""

    @abstractmethod
    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits `[R, V]`, in the stage's dtype or in `ArShape.logits_dtype`."""


class DrawCode(Protocol):
    """Draws one id per row from code logits, by the request's `code_*` parameters and the row's seed and position."""

    def __call__(self, logits_RV: Tensor, group: int) -> Tensor:
        """Returns the chosen codes, int64 `[R]`. group: the code group, at least 1."""


@dataclass(frozen=True, slots=True)
class Codes:
    """One codec frame per row. codes_RG: int64, group 0 first. next_RD: the frame's part of the next input embedding."""

    codes_RG: Tensor
    next_RD: Tensor


@dataclass(frozen=True, slots=True)
class FrameEnd:
    """A frame whose first `groups` codes are all `code` ends its request. If all its codes are, the frame is dropped, and its token
    has no frame, like a stop id. Otherwise it is the request's last frame. Where `min_tokens` or `ignore_eos` let the request
    continue, such a frame is an ordinary one."""

    code: int
    groups: int


class CodecModel(ArModel):
    """A decoder whose token is the first code of a frame, and whose next input depends on all codes of the frame."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Codes per frame, group 0 included."""

    @property
    @abstractmethod
    def next_width(self) -> int:
        """The width of `Codes.next_RD`, which is added to the next input embedding."""

    @property
    def frame_end(self) -> FrameEnd | None:
        """None if only tokens end a request: the last token then has no frame. Otherwise a token is handed over
        together with its frame, and the last token within `max_tokens` has a frame like the others."""
        return None

    @abstractmethod
    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        """Predicts the frames that begin with the tokens `code0_R`, sampled from `hidden_RD`. The next step needs them."""

    @abstractmethod
    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames, equal to that of `predict_codes`, for the replay of preempted requests."""
