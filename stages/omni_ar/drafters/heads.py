"""Code shared by heads over a stage's hidden states: the stage's embeddings and output matrix, and errors of head checkpoints.

Shape legend: as in `omni_ar.drafters.base`; D width of the stage, V its vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from omni.errors import CheckpointError
from omni_ar.model import ArModel, NextTokens


class StageVocabulary:
    """The embeddings and the output matrix of a stage's model. Not a module: a head that refers to it does not own the weights."""

    def __init__(self, model: ArModel) -> None:
        self._model = model

    @property
    def size(self) -> int:
        return self._model.shape.vocab_size

    def embed(self, ids_T: Tensor) -> Tensor:
        """`[T, D]` of int64 ids."""
        count = ids_T.shape[0]
        none_R0 = ids_T.new_empty((count, 0))
        return self._model.embed_next(NextTokens(ids_T, ids_T.new_empty((0, count)), none_R0, none_R0))

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """`[R, V]` of normalized hidden states."""
        return self._model.logits(hidden_RD)


@contextmanager
def errors_of(field: str) -> Iterator[None]:
    """While entered, errors of a checkpoint begin with the field that names it, since the stage has a checkpoint too."""
    try:
        yield
    except CheckpointError as error:
        named = field if error.field == "model" else f"{field}: {error.field}"
        raise CheckpointError(named, error.problem, error.remedy) from error
