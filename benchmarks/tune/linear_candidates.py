"""Settings of linear maps that are worth measuring."""

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings

L2_BYTES = 60e6
MOST_SHARED = 220_000
ONE_PROGRAM, MANY_PROGRAMS = 60, 1400


def streamed_candidates(kind: str, outputs: int, width: int) -> Iterator[StreamedSettings]:
    """Tiles of which a thread holds 16 to 128 weights, and which make enough programs to fill the device. A single warp needs no
    barrier."""
    whole, divisor = min(1 << (width - 1).bit_length(), 4096), min(width & -width, 4096)
    halves = 2 if kind.endswith("gated") else 1
    for block_d in {whole, whole // 2, divisor}:
        for block_n in (1, 2, 4, 8, 16):
            for warps in (1, 2, 4, 8):
                fills = block_n == 1 or outputs // halves >= 128 * block_n
                if fills and 16 <= halves * block_n * block_d // (32 * warps) <= (128 if warps == 1 else 64):
                    yield StreamedSettings(block_n=block_n, block_d=block_d, num_warps=warps)


def tiled_candidates(kind: str, outputs: int, width: int, rows: int) -> Iterator[TiledSettings]:
    """Tiles of which there are enough to fill the device, but no thousands, in shared memory that as many of them share."""
    halves = 2 if kind.endswith("gated") else 1
    norm = kind.startswith("norm")
    for height, tile_d, slices in tiles(rows, norm):
        tile_n = height // halves
        programs = -(-outputs // (halves * tile_n))
        if (programs < ONE_PROGRAM and height > 16) or (programs > MANY_PROGRAMS and height < 32) or tile_d > width:
            continue
        stage = 2 * tile_d * (height + max(rows, 8) * (2 if norm else 1))
        shared = MOST_SHARED // min(-(-programs // 132), 3)
        steps = -(-width // tile_d)
        buffers = min(shared // stage, steps, 8)
        if buffers < 2 and steps > 1:
            continue
        settings = TiledSettings(
            tile_n=tile_n,
            tile_d=tile_d,
            slices=slices,
            # Eight weight rows, or few enough rows, are the matrix units' right operand.
            rows_left=slices > 1 and (height < 16 or rows > 8),
            num_warps=max(slices, 4),
            num_stages=buffers + (slices > 1),
        )
        yield settings
        if 2 * outputs * width > L2_BYTES / 2 or (slices > 1 and height == 16):
            yield replace(settings, fetch=False)


def held_candidates(kind: str, outputs: int, width: int, rows: int) -> Iterator[TiledSettings]:
    """Tiles of which the device holds all at once: in registers first, then in shared memory."""
    halves, norm = (2 if kind.endswith("gated") else 1), kind.startswith("norm")
    for height, splits, slices in itertools.product((8, 16, 32), (1, 2, 3, 4), (4, 8, 16)):
        programs, padded = -(-outputs // height) * splits, max(rows, 8 if height > 8 else 16)
        share = width // splits
        tile_d = share & -share
        held = (height + padded * (2 if norm else 1)) * share
        # What a thread holds, in half registers.
        each = held // (32 * slices)
        resident = min(MOST_SHARED // (2 * (height + padded) * share), 24 // slices)
        if tile_d * splits * (share // tile_d) != width or tile_d // slices < 64 or not 32 <= each <= 256:
            continue
        if programs > 132 * resident or (programs < 60 and outputs > 256 and height > 8):
            continue
        if splits > 1 and (kind != "linear" or programs < 90):
            continue
        yield TiledSettings(
            tile_n=height // halves,
            tile_d=tile_d,
            slices=slices,
            rows_left=height < 16 or rows > 8,
            num_warps=slices,
            num_stages=2,
            splits=splits,
            fetch=tile_d < share,
            held=True,
        )


def split_candidates(outputs: int, width: int, rows: int) -> Iterator[TiledSettings]:
    """Candidates for few outputs: without a split of the width there would be too few tiles."""
    for height, tile_d, slices in ((16, 256, 4), (32, 256, 4), (32, 128, 4), (64, 128, 1), (64, 64, 1)):
        for splits in (2, 3, 4, 6, 8):
            programs = -(-outputs // height) * splits
            steps, rest = divmod(width, splits * tile_d)
            buffers = min(
                steps, 6, MOST_SHARED // min(-(-programs // 132), 3) // (2 * tile_d * (height + max(rows, 8)))
            )
            if (
                rest
                or not (90 if outputs > 256 else 16) <= programs <= 280
                or buffers < 2
                or (rows <= 16) != (height == 16)
            ):
                continue
            yield TiledSettings(
                tile_n=height,
                tile_d=tile_d,
                slices=slices,
                rows_left=slices > 1 and rows > 8,
                num_warps=4,
                num_stages=buffers + (slices > 1),
                splits=splits,
            )


def tiles(rows: int, norm: bool) -> Iterator[tuple[int, int, int]]:
    """Rows of weights, inputs and slices of a tile."""
    if not norm or rows <= 16:
        yield from ((height, 256, 4) for height in (8, 16, 32))
        yield from ((height, 512, 8) for height in (8, 16))
    if rows >= 32:
        yield from ((height, 128, 4) for height in (16, 32) if not norm or height * rows <= 1024)
    yield from ((64, 64, 1), (64, 128, 1), (128, 64, 1))
