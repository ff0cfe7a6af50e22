"""A stream decoded alone equals the stage's output, and the definition."""

import msgspec
import numpy as np
import pytest
import torch

from omni_diffusion.alone import denoise_alone, render_alone
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import Window, WindowSizes
from tests.support.frame_bench import random_codes
from tests.support.painter import BLOCK, REPEATS, Painter, Span, drawn, heard, painted, spans

OPTIONS = DiffusionOptions(first_chunk_blocks=2, chunk_blocks=1, blocks_before=1, blocks_after=2)


@pytest.mark.parametrize("count", [1, 3, 7, 16])
def test_it_is_what_the_book_says(count: int) -> None:
    model, codes, noise = Painter(), random_codes(count), drawn(4, count)
    tensors = torch.from_numpy(codes), 3, torch.from_numpy(noise)
    for windows, sizes in (
        ([Span(0, 0, count, count)], None),
        (spans(count, OPTIONS), WindowSizes.of(OPTIONS, model)),
    ):
        latents_TM = denoise_alone(model, *tensors, sizes)
        wanted = painted(codes, 3, noise, windows)
        np.testing.assert_allclose(latents_TM, wanted, rtol=1e-5, atol=1e-5)
        wave = heard(wanted, model.context)
        np.testing.assert_allclose(render_alone(model, latents_TM), wave, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [(1, 1, 0, 0), (1, 3, 2, 1), (4, 1, 1, 3)])
@pytest.mark.parametrize("context", [0, 1, 7, 40])
def test_pieces_and_windows_are_those_of_a_whole_stream(options: tuple[int, int, int, int], context: int) -> None:
    """Frame by frame: each is fresh once and rendered once, in order, with all the context there is around it."""
    names = ("first_chunk_blocks", "chunk_blocks", "blocks_before", "blocks_after")
    sizes = WindowSizes.of(
        msgspec.structs.replace(DiffusionOptions(), **dict(zip(names, options, strict=True))), Painter(context)
    )
    usual = sizes.usual_pieces()
    for total in range(1, 14 * BLOCK):
        done = rendered = 0
        pieces = []
        while (window := sizes.next(done, total, ended=True)) is not None:
            assert isinstance(window, Window)
            assert window.first + window.context == done
            assert window.frames <= sizes.frames
            assert window.context == min(done, sizes.before)
            done += window.fresh
            piece = sizes.piece(rendered, done * REPEATS, window.fresh * REPEATS, window.last)
            if piece.count:
                assert piece.left == min(rendered, context)
                assert piece.right == (0 if window.last else context)
            rendered += piece.count
            assert rendered <= done * REPEATS
            pieces.append(piece)
        if rendered < done * REPEATS:  # it was not certain that nothing would follow
            pieces.append(sizes.piece(rendered, done * REPEATS, 0, last=True))
            rendered += pieces[-1].count
        assert (done, rendered) == (total, total * REPEATS)
        assert set(pieces[:-2]) <= set(usual), "all but the end of a stream is captured"
        assert all(piece.fresh <= sizes.most_fresh and piece.seen <= sizes.kept for piece in pieces)
