"""Runs of the attention kernels on the rows of `PagedRows`."""

import torch

from omni_ar.kernels.attention import decode_kernel, prefill_kernel
from omni_ar.kernels.attention.settings import DecodeSettings, PrefillSettings
from tests.stages.omni_ar.paged_rows import LAYER, PLAIN

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PREFILL = PrefillSettings(block_m=16, block_n=16, num_warps=4, num_stages=1)


def decode_settings(splits, fused=True):
    return DecodeSettings(block_n=16, splits=splits, fused=fused, num_warps=4, num_stages=1)


def attend(world, q, meta, decode, prefill=PREFILL, features=PLAIN, counters=64):
    """The results of the kernels, called as on a GPU. Entries that they do not write stay NaN. counters: number of finished
    splits' that the kernel is given, of more that it must not touch."""
    key, value, count = world.cache.key[LAYER], world.cache.value[LAYER], meta.num_decode
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    finished_splits = torch.zeros(64, dtype=torch.int32, device=q.device)
    finished_splits[counters:] = -7
    if count:
        table, lengths = meta.decode_block_table_RM, meta.decode_lengths_R
        positions = meta.decode_positions
        decode_kernel.decode_attention(
            q[:count], key, value, table, lengths, finished_splits[:counters], decode, out[:count], features, positions
        )
    if q.shape[0] > count:
        rows = meta.prefill_rows_P4
        prefill_kernel.prefill_attention(q, key, value, meta.block_table_NM, rows, count, prefill, out, features)
    assert not finished_splits[:counters].any()
    assert finished_splits[counters:].eq(-7).all()
    return out


def capture(backend, q, world, meta, features=PLAIN):
    backend.attend(q, world.cache, LAYER, meta, features)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, backend.attend(q, world.cache, LAYER, meta, features)
