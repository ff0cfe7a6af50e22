"""Launch settings of the attention kernels: measured settings from the tables, else defaults.

Shape legend: R rows, N blocks, B slots per block, H query heads, K key and value heads, D head width.
"""

import math
from functools import cache

import msgspec
import torch
from torch import Tensor

from omni.device.kernel_choice import kernel_device
from omni_ar.kernels.tuning import cached_lookup, tuned

MAX_SPLITS = 64
"""Maximum number of splits of a row."""

_QUERIES = 64
"""Maximum number of queries of a program with several positions, of the usual width: one matrix instruction of a warp group."""

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class DecodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """block_n: keys per tile. splits: maximum number of programs per row and key head, a power of two; a row with fewer
    tiles takes one per tile. fused: whether the last split to finish adds the parts up, instead of a second kernel. registers:
    maximum of a thread, 0 for the compiler's choice, which with some settings leaves three programs to a multiprocessor where four
    are to run (benchmarks/results/2026-11-29-drafts-h200.md)."""

    block_n: int
    splits: int
    fused: bool
    num_warps: int
    num_stages: int
    registers: int = 0


class PrefillSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """block_m: query tokens times query heads of one key head, per tile; at least the number of those heads. block_n:
    keys per tile."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def matrix_block(count: int) -> int:
    """The block size for `count` rows: a power of two, at least the size of a matrix instruction."""
    return max(16, 1 << (count - 1).bit_length())


def log2_scale(scale: float) -> float:
    """Scale of the scores, for exp2, the exponential that the hardware has."""
    return scale / math.log(2)


def shape_key(q_THD: Tensor, key_NBKD: Tensor) -> str:
    """A shape's key in the tables."""
    heads, head_dim = q_THD.shape[1:]
    return f"H{heads}-K{key_NBKD.shape[2]}-D{head_dim}-B{key_NBKD.shape[1]}-{_DTYPES[q_THD.dtype]}"


def positions_together(positions: int, group: int, head_dim: int, itemsize: int) -> int:
    """Positions of a row that one program attends. group: query heads of a key head."""
    # Without matrix units at this precision, operands are held in registers.
    queries = _QUERIES * 128 // max(matrix_block(head_dim), 128) if itemsize <= 2 else 16
    return max(1, min(positions, queries // group))


def decode_settings(q_RHD: Tensor, key_NBKD: Tensor, positions: int = 1) -> DecodeSettings:
    """Settings for a batch of R decode rows, `positions` of each row."""
    (rows, heads, head_dim), kv_heads = q_RHD.shape, key_NBKD.shape[2]
    together = positions_together(positions, heads // kv_heads, head_dim, q_RHD.element_size())
    rows = rows // positions * -(-positions // together)
    return _decode_settings(
        kernel_device(q_RHD), shape_key(q_RHD, key_NBKD), rows, kv_heads, q_RHD.shape[2], q_RHD.element_size()
    )


def prefill_settings(tokens: int, q_THD: Tensor, key_NBKD: Tensor) -> PrefillSettings:
    """Settings for a batch with `tokens` prompt tokens."""
    # Rounded up, so that few sizes are cached.
    tokens = 1 << (tokens - 1).bit_length()
    heads, head_dim = q_THD.shape[1:]
    group, itemsize = heads // key_NBKD.shape[2], q_THD.element_size()
    return _prefill_settings(kernel_device(q_THD), shape_key(q_THD, key_NBKD), tokens, group, head_dim, itemsize)


@cached_lookup
def _decode_settings(
    device: torch.device, key: str, rows: int, kv_heads: int, head_dim: int, itemsize: int
) -> DecodeSettings:
    # About four programs per SM hide each other's latency; more would only cut short rows into smaller splits.
    wanted = 4 * _processors(device) // (rows * kv_heads)
    splits = min(1 << max(wanted, 1).bit_length() - 1, MAX_SPLITS)
    # A tile of keys and one of values are 32 KiB together.
    block_n = max(16, min(64, 16384 // (matrix_block(head_dim) * itemsize)))
    default = {"block_n": block_n, "splits": splits, "fused": True, "num_warps": 4, "num_stages": 2}
    return msgspec.convert(tuned("attention_decode", device, key, rows, default), DecodeSettings)


@cached_lookup
def _prefill_settings(
    device: torch.device, key: str, tokens: int, group: int, head_dim: int, itemsize: int
) -> PrefillSettings:
    wide = matrix_block(head_dim) > 128
    if itemsize > 2:
        # Without matrix units at this precision, operands are held in registers.
        default = {"block_m": matrix_block(group), "block_n": 16 if wide else 32, "num_warps": 4, "num_stages": 1}
    else:
        default = {
            "block_m": max(128, matrix_block(group)),
            "block_n": 64,
            "num_warps": 8,
            "num_stages": 2 if wide else 3,
        }
    return msgspec.convert(tuned("attention_prefill", device, key, tokens, default), PrefillSettings)


@cache
def _processors(device: torch.device) -> int:
    # The interpreter has one processor; the number does not matter there.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
