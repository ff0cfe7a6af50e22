"""Part one for a wide vocabulary: a row's penalized logits, by blocks of ids.

For a row that is greedy, or random without top-k, top-p and min-p, each block stores its best id. For other rows it
stores the values and the maximum of each tile: few tiles hold the ids that are kept. Blocks, and so sums, are the
same for any number of rows.
"""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import RANDOM, SELECTS
from omni_ar.kernels.sampling.noise import draw_of, noise_of_all
from omni_ar.kernels.sampling.order import rank_of
from omni_ar.kernels.sampling.penalties import penalized, sanitized


@triton.jit(do_not_specialize=["use", "position_stride"], do_not_specialize_on_alignment=["rows_ptr", "position_ptr"])
def scan(
    logits_ptr,
    logits_stride,
    rows_ptr,
    position_ptr,
    position_stride,
    parameters,
    work_ptr,
    tiles_ptr,
    best_ptr,
    weight_ptr,
    drafts_ptr,
    use,
    vocab,
    BY_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """One program per block and position of a row of the batch. parameters: as `Pointers`. drafts: as in `sample_row`.

    work: fp32 `[R, vocab]`, values after penalties and temperature. tiles: fp32 `[R, blocks * BLOCK / TILE]`, the
    maximum of each tile. weight: fp32 `[R, blocks]`, the weight of a block's values, relative to its own maximum.
    best: int64 `[R, blocks]`, `rank_of` its best. For a row, either the first three are written or `best` is; penalties
    that name ids also write to `work`.
    """
    block, index = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch_row, before = index // (1 + DRAFTS), index % (1 + DRAFTS)
    row = tl.load(rows_ptr + batch_row)
    needs = tl.load(parameters.needs + row).to(tl.int32)
    position = tl.load(position_ptr + (row if BY_ROW else batch_row) * position_stride) + before
    start = block * BLOCK
    ids = start + tl.arange(0, BLOCK)
    inside = ids < vocab
    x = sanitized(tl.load(logits_ptr + index * logits_stride + ids, mask=inside, other=float("-inf")).to(tl.float32))
    work_row_ptr = work_ptr + index * vocab
    row_drafts_ptr = drafts_ptr + row * DRAFTS
    x = penalized(
        x, start, row, needs, position, work_row_ptr, parameters, vocab, row_drafts_ptr, before, BLOCK, DRAFTS
    )  # fmt: skip
    if (needs & RANDOM) != 0:
        x = tl.div_rn(x, tl.load(parameters.temperature + row))
    blocks = tl.num_programs(0)
    if ((needs & RANDOM) != 0) & ((needs & SELECTS) != 0):
        tl.store(work_row_ptr + ids, x, mask=inside)
        largest = tl.max(tl.reshape(x, [BLOCK // TILE, TILE]), axis=1)
        tl.store(tiles_ptr + (index * blocks + block) * (BLOCK // TILE) + tl.arange(0, BLOCK // TILE), largest)
        most = tl.max(largest)
        weight = tl.sum(tl.exp(x - tl.where(most == float("-inf"), 0.0, most)))
        tl.store(weight_ptr + index * blocks + block, weight)
    else:
        if (needs & RANDOM) != 0:
            x += noise_of_all(start, draw_of(parameters, row, position, use), BLOCK)
        tl.store(best_ptr + index * blocks + block, tl.max(rank_of(x, ids)))
