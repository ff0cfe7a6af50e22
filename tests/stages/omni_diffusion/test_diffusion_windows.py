"""The windows and parts of a stream."""

import msgspec
import pytest

from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import DenoisingWindow, WindowSizes
from tests.support.painter import BLOCK, REPEATS, Painter


@pytest.mark.parametrize("options", [(1, 1, 0, 0), (1, 3, 2, 1), (4, 1, 1, 3)])
@pytest.mark.parametrize("context", [0, 1, 7, 40])
def test_parts_and_windows_are_those_of_a_whole_stream(options: tuple[int, int, int, int], context: int) -> None:
    """Frame by frame: each is fresh once and rendered once, in order, with all the context there is around it."""
    names = ("first_chunk_blocks", "chunk_blocks", "blocks_before", "blocks_after")
    sizes = WindowSizes.of(
        msgspec.structs.replace(DiffusionOptions(), **dict(zip(names, options, strict=True))), Painter(context)
    )
    usual = sizes.usual_parts()
    for total in range(1, 14 * BLOCK):
        done = rendered = 0
        parts = []
        while (window := sizes.next(done, total, ended=True)) is not None:
            assert isinstance(window, DenoisingWindow)
            assert window.first + window.context == done
            assert window.frames <= sizes.frames
            assert window.context == min(done, sizes.before)
            done += window.fresh
            part = sizes.part(rendered, done * REPEATS, window.fresh * REPEATS, window.last)
            if part.count:
                assert part.left == min(rendered, context)
                assert part.right == (0 if window.last else context)
            rendered += part.count
            assert rendered <= done * REPEATS
            parts.append(part)
        if rendered < done * REPEATS:  # it was not certain that nothing would follow
            parts.append(sizes.part(rendered, done * REPEATS, 0, last=True))
            rendered += parts[-1].count
        assert (done, rendered) == (total, total * REPEATS)
        assert set(parts[:-2]) <= set(usual), "all but the end of a stream is captured"
        assert all(part.fresh <= sizes.most_fresh and part.seen <= sizes.kept for part in parts)
