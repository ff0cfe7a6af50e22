"""Launch settings of the attention kernels: measured ones where a table has them, and what fits elsewhere.

Shape legend: R rows, N blocks, B slots per block, H query heads, K key and value heads, D head width.
"""

import math
from functools import cache

import msgspec
import torch
from torch import Tensor

from omni_ar.kernels.tuning import looked_up_once, tuned

MAX_SPLITS = 64
"""Splits of a row at most."""

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class DecodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """block_n: keys per tile. splits: programs per row and key head at most, a power of two; a row takes one per tile if it has
    fewer tiles. fused: whether the last split to arrive adds the parts up, or a second kernel does."""

    block_n: int
    splits: int
    fused: bool
    num_warps: int
    num_stages: int


class PrefillSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """block_m: query tokens times query heads of one key head, per tile; no fewer than those heads. block_n: keys per tile."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def matrix_block(count: int) -> int:
    """A power of two, and as much as a matrix instruction takes."""
    return max(16, 1 << (count - 1).bit_length())


def log2_scale(head_dim: int) -> float:
    """What scores are multiplied by before exp2, the exponential that the hardware has."""
    return 1 / (math.sqrt(head_dim) * math.log(2))


def shape_key(q_THD: Tensor, key_NBKD: Tensor) -> str:
    """A shape's key in the tables."""
    heads, head_dim = q_THD.shape[1:]
    return f"H{heads}-K{key_NBKD.shape[2]}-D{head_dim}-B{key_NBKD.shape[1]}-{_DTYPES[q_THD.dtype]}"


def decode_settings(q_RHD: Tensor, key_NBKD: Tensor) -> DecodeSettings:
    """For a batch of R rows."""
    rows, kv_heads = q_RHD.shape[0], key_NBKD.shape[2]
    return _decode_settings(
        q_RHD.device, shape_key(q_RHD, key_NBKD), rows, kv_heads, q_RHD.shape[2], q_RHD.element_size()
    )


def prefill_settings(tokens: int, q_THD: Tensor, key_NBKD: Tensor) -> PrefillSettings:
    """For a batch with `tokens` prompt tokens."""
    # Rounded up, so that few sizes are kept.
    tokens = 1 << (tokens - 1).bit_length()
    heads, head_dim = q_THD.shape[1:]
    group, itemsize = heads // key_NBKD.shape[2], q_THD.element_size()
    return _prefill_settings(q_THD.device, shape_key(q_THD, key_NBKD), tokens, group, head_dim, itemsize)


@looked_up_once
def _decode_settings(
    device: torch.device, key: str, rows: int, kv_heads: int, head_dim: int, itemsize: int
) -> DecodeSettings:
    # About four programs per SM hide each other's latency; with more, short rows would only be cut finer.
    wanted = 4 * _processors(device) // (rows * kv_heads)
    splits = min(1 << max(wanted, 1).bit_length() - 1, MAX_SPLITS)
    # A tile of keys and one of values are 32 KiB together.
    block_n = max(16, min(64, 16384 // (matrix_block(head_dim) * itemsize)))
    default = {"block_n": block_n, "splits": splits, "fused": True, "num_warps": 4, "num_stages": 2}
    return msgspec.convert(tuned("attention_decode", device, key, rows, default), DecodeSettings)


@looked_up_once
def _prefill_settings(
    device: torch.device, key: str, tokens: int, group: int, head_dim: int, itemsize: int
) -> PrefillSettings:
    wide = matrix_block(head_dim) > 128
    if itemsize > 2:
        # No matrix units at this precision: operands stand in registers.
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
    # Under the interpreter there is one, and the number matters to nobody.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
