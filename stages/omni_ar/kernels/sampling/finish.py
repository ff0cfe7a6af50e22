"""Part two for a wide vocabulary: one program per row gathers the values that may be kept and draws from them, or takes
the best of the blocks' best ids."""

import triton
import triton.language as tl

from omni_ar.kernels.sampling.constants import RANDOM, SELECTS
from omni_ar.kernels.sampling.noise import draw_of
from omni_ar.kernels.sampling.order import NOTHING, id_of
from omni_ar.kernels.sampling.select import Scratch, draw_from_tiles, selection_of


@triton.jit(
    do_not_specialize=["use", "position_stride", "out_stride"],
    do_not_specialize_on_alignment=["rows_ptr", "position_ptr", "out_ptr"],
)
def finish(
    rows_ptr,
    position_ptr,
    position_stride,
    parameters,
    work_ptr,
    tiles_ptr,
    best_ptr,
    weight_ptr,
    chosen_ptr,
    scratch_x_ptr,
    scratch_ids_ptr,
    out_ptr,
    out_stride,
    use,
    vocab,
    blocks,
    BY_ROW: tl.constexpr,
    TILE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    PADDED_BLOCKS: tl.constexpr,
    PADDED_TILES: tl.constexpr,
    NUCLEUS: tl.constexpr,
    CAPACITY: tl.constexpr,
    FEW: tl.constexpr,
    DRAFTS: tl.constexpr,
):
    """Finishes a row's draw. parameters: pointers as in `Pointers`. chosen: memory for a row's tiles. scratch_x, scratch_ids:
    memory for CAPACITY + FEW values and ids of a row."""
    index = tl.program_id(0).to(tl.int64)
    batch_row, before = index // (1 + DRAFTS), index % (1 + DRAFTS)
    row = tl.load(rows_ptr + batch_row)
    needs = tl.load(parameters.needs + row).to(tl.int32)
    best = tl.full([], NOTHING, tl.int64)
    if ((needs & RANDOM) != 0) & ((needs & SELECTS) != 0):
        position = tl.load(position_ptr + (row if BY_ROW else batch_row) * position_stride) + before
        draw = draw_of(parameters, row, position, use)
        selection = selection_of(parameters, row, needs, vocab)
        first = index * (CAPACITY + FEW)
        scratch = Scratch(scratch_x_ptr + first, scratch_ids_ptr + first)
        tiles = index * (blocks * PER_BLOCK)
        best = draw_from_tiles(
            work_ptr + index * vocab, tiles_ptr + tiles, weight_ptr + index * blocks, chosen_ptr + tiles,
            selection, draw, scratch, vocab, blocks, TILE, PER_BLOCK, PADDED_BLOCKS, PADDED_TILES, NUCLEUS, CAPACITY, FEW,
        )  # fmt: skip
    else:
        at = tl.arange(0, PADDED_BLOCKS)
        best = tl.max(tl.load(best_ptr + index * blocks + at, mask=at < blocks, other=NOTHING))
    tl.store(out_ptr + index * out_stride, id_of(best))
