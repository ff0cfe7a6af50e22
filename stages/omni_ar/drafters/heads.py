"""Code shared by heads over a stage's hidden states: the stage's embeddings and output matrix, and errors of head checkpoints.

Shape legend: as in `omni_ar.drafters.base`; D width of the stage, V its vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from omni.errors import CheckpointError
from omni_ar.model import ArModel, NextTokens


class StageVocabulary:
    """The embeddings and the output matrix of a stage's model. Not a module: a head that refers to it does not own the weights."""

    def __init__(self, model: ArModel, dtype: torch.dtype) -> None:
        """dtype: of the stage."""
        self._model = model
        self._dtype = dtype

    @property
    def size(self) -> int:
        return self._model.shape.vocab_size

    @property
    def output_bytes(self) -> int:
        """Bytes of the whole output matrix."""
        shape = self._model.shape
        return shape.vocab_size * shape.hidden_width * self._dtype.itemsize

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
