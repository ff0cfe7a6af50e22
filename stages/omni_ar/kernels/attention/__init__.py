"""Attention over a paged KV cache.

Shape legend: T tokens, R decode rows, P prompt rows, N blocks or rows of the stage, B slots per block, M blocks per row, H query
heads, K key and value heads, D head width.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from omni_ar.kernels.attention import reference
from omni_ar.kernels.attention.settings import decode_settings, prefill_settings
from omni_ar.kernels.select import runs_kernel

if TYPE_CHECKING:
    from omni_ar.attention.base import PrefillRow


def attend_decodes(
    q_RHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    max_length: int,
    arrivals: Tensor,
    out_RHD: Tensor,
) -> None:
    """One token per row over the row's keys. All of one floating-point dtype but `table_RM` and `lengths_R`, int64.

    max_length: no row is longer. arrivals: int32 zeros that no other stream uses meanwhile; zeros again afterwards. With fewer than
    R * K, split rows take a second kernel.
    """
    if runs_kernel(q_RHD):
        from omni_ar.kernels.attention import decode_kernel

        settings = decode_settings(q_RHD, key_NBKD)
        decode_kernel.decode_attention(q_RHD, key_NBKD, value_NBKD, table_RM, lengths_R, arrivals, settings, out_RHD)
    else:
        out_RHD.copy_(reference.decode_attention(q_RHD, key_NBKD, value_NBKD, table_RM, lengths_R, max_length))


def attend_prompts(
    q_THD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    prompts: Sequence["PrefillRow"],
    table_NM: Tensor,
    rows_P4: Tensor,
    out_THD: Tensor,
) -> None:
    """Causal attention of the prompts' tokens, which stand at `start` in `q_THD` and `out_THD`; other tokens are left alone.

    table_NM: int64 blocks of every row. rows_P4: int64 row, start, query_length, context_length of each of `prompts`, on the
    device.
    """
    if runs_kernel(q_THD):
        from omni_ar.kernels.attention import prefill_kernel

        lengths = [row.query_length for row in prompts]
        settings = prefill_settings(sum(lengths), q_THD, key_NBKD)
        prefill_kernel.prefill_attention(q_THD, key_NBKD, value_NBKD, table_NM, rows_P4, lengths, settings, out_THD)
    else:
        for row in prompts:
            tokens = slice(row.start, row.start + row.query_length)
            out_THD[tokens] = reference.prefill_attention(
                q_THD[tokens], key_NBKD, value_NBKD, row.block_table_M, row.context_length
            )
