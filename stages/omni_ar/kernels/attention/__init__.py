"""Attention over a paged KV cache.

Shape legend: T tokens, R decode rows, P prompt rows, N blocks or rows of the stage, B slots per block, M blocks per row, H query
heads, K key and value heads, D head width.
"""

from torch import Tensor

from omni.device.kernel_choice import runs_kernel
from omni_ar.kernels.attention import reference
from omni_ar.kernels.attention.features import PLAIN, AttentionFeatures
from omni_ar.kernels.attention.settings import decode_settings, prefill_settings


def attend_decodes(
    q_RHD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_RM: Tensor,
    lengths_R: Tensor,
    max_length: int,
    finished_splits: Tensor,
    out_RHD: Tensor,
    features: AttentionFeatures = PLAIN,
    positions: int = 1,
) -> None:
    """Attends one token per decode row to the row's keys. Queries, pages and results have one floating-point dtype; `table_RM`
    and `lengths_R` are int64.

    max_length: upper bound of the rows' lengths, used by the reference only. finished_splits: int32 zeros that no other stream
    uses during the launch; zeros again afterwards. With fewer than one for each key head of each program's decode rows, split
    rows take a second kernel; R * K are enough.
    positions: as many consecutive decode rows, of which R is a multiple, are positions of one row, which the kernel loads the
    keys of once; the blocks of the first serve all of them.
    """
    if runs_kernel(q_RHD):
        from omni_ar.kernels.attention import decode_kernel

        settings = decode_settings(q_RHD, key_NBKD, positions)
        decode_kernel.decode_attention(
            q_RHD, key_NBKD, value_NBKD, table_RM, lengths_R, finished_splits, settings, out_RHD, features, positions
        )
    else:
        rows = (table_RM, lengths_R, max_length)
        out_RHD.copy_(reference.decode_attention(q_RHD, key_NBKD, value_NBKD, *rows, features, positions))


def attend_prompts(
    q_THD: Tensor,
    key_NBKD: Tensor,
    value_NBKD: Tensor,
    table_NM: Tensor,
    rows_P4: Tensor,
    first: int,
    out_THD: Tensor,
    features: AttentionFeatures = PLAIN,
) -> None:
    """Causal attention of the tokens from `first` on: prompt after prompt, then padding, which yields zeros. Tokens
    before `first` are unchanged.

    table_NM: int64, blocks of every row. rows_P4: int64, each prompt's row, first token in the batch, number of tokens
    and context length; an entry without tokens is unused.
    """
    tokens = q_THD.shape[0] - first
    if not tokens:
        return
    if runs_kernel(q_THD):
        from omni_ar.kernels.attention import prefill_kernel

        settings = prefill_settings(tokens, q_THD, key_NBKD)
        prefill_kernel.prefill_attention(
            q_THD, key_NBKD, value_NBKD, table_NM, rows_P4, first, settings, out_THD, features
        )
    else:
        out_THD[first:] = reference.prefill_rows_attention(
            q_THD[first:], key_NBKD, value_NBKD, table_NM, rows_P4, first, features
        )
