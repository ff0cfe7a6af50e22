"""Payloads of edges: named tensors that stay where they were made, and small structs that describe them; and outputs for users."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import COMPLETED, Event


class PageSlice:
    """Entries of a paged buffer, not yet gathered. Producer and consumer share one object, so that the producer can move them.

    pages: `[num_blocks, block_size, width]`, on the producer's device; other entries of it are still being written. slots: int64
    `[n]`, numbers of entries (`block * block_size + offset`), in the consumer's order. moved: done once they are at the present
    place.

    The consumer reads `pages` and `slots` when it launches a gather, keeps neither, and reports each gather with `gathered`, also
    one that fails half-way. `omni.stage.PayloadCopier` does all of this. The producer may `relocate` the entries until the
    payload is `released`: later gathers read the new place. It may overwrite the old entries once `moved` and the event that
    `relocate` returned are done.
    """

    __slots__ = ("_readers", "moved", "pages", "slots")

    def __init__(self, pages: torch.Tensor, slots: NDArray[np.int64]) -> None:
        self.pages = pages
        self.slots = slots
        self.moved: Event = COMPLETED
        self._readers: tuple[Event, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the gathered entries: `[n, width]`."""
        return len(self.slots), self.pages.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.pages.dtype

    def relocate(self, pages: torch.Tensor, slots: NDArray[np.int64], moved: Event) -> Event:
        """Sets the entries' new place, valid once `moved` is done. Returns the former `reader`."""
        old = self.reader
        self.pages, self.slots, self.moved = pages, slots, moved
        return old

    def gathered(self, until: Event) -> None:
        """Reports that a gather of some entries was launched from the present place and ends at `until`."""
        self._readers = (*(reader for reader in self._readers if not reader.done()), until)

    @property
    def reader(self) -> Event:
        """An event after every gather reported so far."""
        return _All(self._readers) if self._readers else COMPLETED

    def rows(self, slots_n: torch.Tensor) -> torch.Tensor:
        """The entries `[n, width]` at `slots_n` (the slots, as an int64 tensor on the pages' device)."""
        return self.pages.flatten(0, 1).index_select(0, slots_n)


@dataclass(frozen=True, slots=True)
class _All:
    """An event that is done when all its parts are."""

    events: tuple[Event, ...]

    def done(self) -> bool:
        return all(event.done() for event in self.events)


class Payload(msgspec.Struct, frozen=True):
    """A message on an edge. meta: describes it; a stage kind's inputs and outputs are such structs, and adapters dispatch on their
    type. tensors: device data by name. Empty for a payload of host data only (tokens, finished audio)."""

    meta: msgspec.Struct
    tensors: Mapping[str, torch.Tensor | PageSlice] = msgspec.field(default_factory=dict)


class GeneratedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Generated token ids, in order, each final and sent once. ends: whether the last id is an end token, not part of the text."""

    ids: tuple[int, ...]
    ends: bool = False


class LogprobsChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of consecutive tokens from the model's own logits, before all processing. first: index of the first token
    among the generated tokens, or among the prompt's if `prompt`. ids: int64 `[n, 1 + k]`, each token's own id, then the `k`
    likeliest. logprobs: float32 `[n, 1 + k]`, of these ids. ranks: int64 `[n]`, the token's among all ids; 1 is the likeliest."""

    first: int
    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    prompt: bool = False


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive samples of one request's waveform. samples: float32 `[n]` in [-1, 1], n may be 0. sample_rate: Hz."""

    samples: NDArray[np.float32]
    sample_rate: int


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors are the encoder's output for the request's item of this index. They are shared: read only."""

    index: int


class CodecFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive codec frames of one request, for users. Tensor `codes`: int64 `[n, G]`, one column per code group."""


class RequestHiddenStates(msgspec.Struct, frozen=True, kw_only=True):
    """Hidden states of a request, given once, when its stage has finished it.

    Tensor `hidden`: `[n, L * D]`, in the order of positions, the layers' states of width D side by side. The positions are
    those of the prompt, then those of all generated tokens but the last, which the stage never reads: n is
    `prompt_tokens + generated tokens - 1`.

    layers: numbered as in published hidden states, 0 for the input embeddings, k for the output of layer k, the last for
    the final, normalized one.
    """

    layers: tuple[int, ...]
    prompt_tokens: int
