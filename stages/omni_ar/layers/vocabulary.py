"""Embedding tables and output matrices of large vocabularies, cut across the ranks of a stage.

Shape legend: R rows, D width, V vocabulary.
"""

from typing import Unpack

from torch import Tensor, nn
from torch.nn import functional as F

from omni.checkpoint import Cut, Destination, MissingLayer, StackedWeights
from omni.parallel import Communicator
from omni_ar.kernels.linear import linear
from omni_ar.layers.linear import FactoryKwargs, Linear
from omni_ar.layers.parallel import communicator, layer_range


class VocabEmbedding(nn.Embedding, StackedWeights):
    """An embedding table whose rows are cut across ranks. A vocabulary that the ranks do not divide is filled up with zeros."""

    def __init__(
        self, vocab_size: int, width: int, communicator: Communicator, **factory: Unpack[FactoryKwargs]
    ) -> None:
        rows = _vocabulary_cut(vocab_size, communicator)
        super().__init__(rows.length, width, **factory)
        self._rows, self._communicator = rows, communicator

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings `[..., width]` of ids, each from the rank that holds it."""
        held = (ids >= self._rows.start) & (ids < self._rows.stop)
        local = (ids - self._rows.start).clamp(0, self._rows.length - 1)
        return self._communicator.all_reduce(F.embedding(local, self.weight).masked_fill(~held[..., None], 0))

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        return _vocabulary_weight(name, self._rows)


class VocabHead(Linear, StackedWeights):
    """The output matrix of a vocabulary, cut across ranks as `VocabEmbedding`, so that both can be tied. out_features: of all
    ranks."""

    def __init__(
        self, width: int, vocab_size: int, communicator: Communicator, **factory: Unpack[FactoryKwargs]
    ) -> None:
        rows = _vocabulary_cut(vocab_size, communicator)
        super().__init__(width, rows.length, bias=False, **factory)
        self.out_features = vocab_size
        self._rows, self._communicator = rows, communicator

    def forward(self, x_RD: Tensor) -> Tensor:
        """All logits, `[R, V]`, contiguous."""
        logits_RV = self._communicator.all_gather(linear(x_RD, self.weight))
        return logits_RV[:, : self.out_features].contiguous()

    def stacked_weights(self, name: str) -> dict[str, Destination]:
        return _vocabulary_weight(name, self._rows)


class MissingHead(MissingLayer):
    """The output matrix that the rank of the last layer range holds. out_features: its outputs."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.out_features = vocab_size


def vocab_embedding(vocab_size: int, width: int, **factory: Unpack[FactoryKwargs]) -> nn.Embedding:
    """The table of a large vocabulary, cut across the ranks of the partition."""
    group = communicator()
    if group is None:
        return nn.Embedding(vocab_size, width, **factory)
    return VocabEmbedding(vocab_size, width, group, **factory)


def vocab_head(width: int, vocab_size: int, **factory: Unpack[FactoryKwargs]) -> Linear | MissingHead:
    """The output matrix of a large vocabulary, cut across the ranks of the partition; absent without the last layer range."""
    own, group = layer_range(), communicator()
    if own is not None and not own.last:
        return MissingHead(vocab_size)
    if group is None:
        return Linear(width, vocab_size, bias=False, **factory)
    return VocabHead(width, vocab_size, group, **factory)


def cut_vocabularies(model: nn.Module) -> list[str]:
    """The names of a model's embedding tables and output matrices of which a rank holds a part."""
    return [name for name, part in model.named_modules() if isinstance(part, VocabEmbedding | VocabHead)]


def _vocabulary_cut(vocab_size: int, communicator: Communicator) -> Cut:
    rows = -(-vocab_size // communicator.size)
    return Cut(0, communicator.rank * rows, (communicator.rank + 1) * rows, vocab_size)


def _vocabulary_weight(name: str, rows: Cut) -> dict[str, Destination]:
    weight = f"{name}.weight" if name else "weight"
    return {weight: Destination(weight, cut=rows)}
