"""Sums of embeddings in plain torch."""

from collections.abc import Sequence

from torch import Tensor


def summed_embeddings(ids_TG: Tensor, tables: Sequence[Tensor], first_TD: Tensor | None) -> Tensor:
    # As in the kernel, for the same bits: torch.sum has an order of its own for each shape.
    rows = [] if first_TD is None else [first_TD]
    rows += [table_VD.index_select(0, ids_T) for table_VD, ids_T in zip(tables, ids_TG.unbind(1), strict=True)]
    total_TD = rows[0].float() if len(rows) > 1 else rows[0]
    for row_TD in rows[1:]:
        total_TD = total_TD + row_TD.float()
    return total_TD.to(tables[0].dtype)
