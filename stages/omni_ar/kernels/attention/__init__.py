"""Attention over a paged KV cache.

Shape legend: T tokens, R decode rows, P prompt rows, N blocks or rows of the stage, B slots per block, M blocks per row, H query
heads, K key and value heads, D head width.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.attention import reference
from omni_ar.kernels.attention.settings import decode_settings, prefill_settings


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
    """One token per row over the row's keys. Queries, pages and results are of one floating-point dtype, `table_RM` and `lengths_R`
    int64.

    max_length: no row is longer, which the reference alone needs to know. arrivals: int32 zeros that no other stream uses
    meanwhile; zeros again afterwards. With fewer than R * K, split rows take a second kernel.
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
    table_NM: Tensor,
    rows_P4: Tensor,
    first: int,
    out_THD: Tensor,
) -> None:
    """Causal attention of the tokens from `first` on: those of the prompts, one prompt after another, then padding, which yields
    zeros. The tokens before are left alone.

    table_NM: int64 blocks of every row. rows_P4: int64 row, first token in the batch, tokens, and context of each prompt; what has
    no tokens is none.
    """
    tokens = q_THD.shape[0] - first
    if not tokens:
        return
    if runs_kernel(q_THD):
        from omni_ar.kernels.attention import prefill_kernel

        settings = prefill_settings(tokens, q_THD, key_NBKD)
        prefill_kernel.prefill_attention(q_THD, key_NBKD, value_NBKD, table_NM, rows_P4, first, settings, out_THD)
    else:
        out_THD[first:] = reference.prefill_rows_attention(
            q_THD[first:], key_NBKD, value_NBKD, table_NM, rows_P4, first
        )
