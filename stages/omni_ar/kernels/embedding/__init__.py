"""Embedding of ids by several tables at once, as the codes of a frame are.

Shape legend: T tokens, G tables, V rows of a table, D width.
"""

from collections.abc import Sequence

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.embedding import reference

__all__ = ["summed_embeddings"]


def summed_embeddings(ids_TG: Tensor, tables: Sequence[Tensor], first_TD: Tensor | None = None) -> Tensor:
    """The sum of `first_TD`, if there is one, and each table's row of its id, `[T, D]`, in the dtype of the tables.

    Added in order, in fp32, and rounded once: a sum depends on no other token. ids_TG: int64, the first dimension of any
    stride; each id must be a row of its table. tables: `[V, D]` each, contiguous.
    """
    if not runs_kernel(ids_TG):
        return reference.summed_embeddings(ids_TG, tables, first_TD)
    from omni_ar.kernels.embedding import kernel

    return kernel.summed_embeddings(ids_TG, tables, first_TD)
