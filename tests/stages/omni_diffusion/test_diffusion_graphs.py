"""Captured steps: padded batches give each row its own, and long streams find all they need captured."""

import numpy as np
import pytest

from omni.device import Stream
from omni.device.cpu import CpuDevice
from tests.support.devices import WarmingDevice
from tests.support.frame_bench import random_codes
from tests.support.painter import BLOCK, Bench, Painter

OPTIONS = {"first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1, "max_num_seqs": 8}


class GraphDevice(WarmingDevice):
    """loose: names of phases that ran outside of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.loose: list[str] = []

    def launch(self, stream: Stream, phase, *buffers: object) -> None:
        self.loose.append(phase.__name__)
        super().launch(stream, phase, *buffers)


@pytest.mark.parametrize("sizes", [(8, 4, 2, 1), (5,), (2, 1)])
@pytest.mark.parametrize("context", [0, 2, 9])
def test_captured_batches_give_each_row_its_own(sizes: tuple[int, ...], context: int) -> None:
    device = GraphDevice()
    bench = Bench(device, Painter(context), **OPTIONS)
    bench.diffusion.capture(sizes)
    codes = {name: random_codes(7 + 5 * number, number) for number, name in enumerate("abc")}
    for name, own in codes.items():
        bench.speak(name, own)
        bench.tick()
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)
    assert set(device.replayed) <= set(device.captured)
    assert not bench.held


@pytest.mark.parametrize("frames", range(14 * BLOCK + 1, 16 * BLOCK + 1))
def test_all_parts_of_a_long_stream_are_captured(frames: int) -> None:
    device = GraphDevice()
    bench = Bench(device, Painter(context=9), **OPTIONS)
    bench.diffusion.capture([1])
    codes = random_codes(frames)
    bench.speak("a", codes)
    bench.model.parts.clear()
    bench.model.steps.clear()
    device.loose.clear()
    bench.settle(device)
    bench.expect("a", codes)
    windows = bench.diffusion.counters()["windows"]
    begun = [name for name in device.replayed if "begin" in name]
    stepped = [name for name in device.replayed if "frames" in name]
    rendered = [name for name in device.replayed if "latents" in name]
    assert (len(begun), len(stepped), len(rendered)) == (windows, len(bench.model.steps), windows)


def test_ends_of_different_sizes_share_a_batch() -> None:
    device = GraphDevice()
    bench = Bench(device, Painter(context=9), **OPTIONS)
    bench.diffusion.capture([2])
    codes = {name: random_codes(15 * BLOCK + number, number) for number, name in enumerate("ab", 1)}
    for name, own in codes.items():
        bench.speak(name, own)
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)
    end = bench.diffusion._sizes.end
    assert device.replayed.count(f"diffusion-{end.fresh}-{end.count}-latents-2") == 1


@pytest.mark.parametrize("context", [0, 2, 9])
@pytest.mark.parametrize("frames", [1, *range(2, 10 * BLOCK, 3)])
def test_streams_of_every_length_end_as_they_should(frames: int, context: int) -> None:
    """Short ones, whose end lies in a part of its own, and long ones."""
    bench = Bench(CpuDevice(), Painter(context), **OPTIONS)
    codes = random_codes(frames)
    bench.speak("a", codes)
    bench.settle(bench.device)
    bench.expect("a", codes)


@pytest.mark.parametrize(("sizes", "begun"), [((8, 4, 2, 1), (2, 1)), ((5, 3), (2,)), ((1,), (1,))])
def test_a_beginning_is_captured_once_however_many_sizes_share_it(
    sizes: tuple[int, ...], begun: tuple[int, ...]
) -> None:
    device = GraphDevice()
    Bench(device, **OPTIONS).diffusion.capture(sizes)
    beginnings = [name for name in device.captured if "begin" in name]
    assert beginnings == [f"diffusion-begin-{windows}" for windows in begun]
    assert {name for name in device.captured if "frames" in name} == {
        f"diffusion-{width * BLOCK}-frames-{size}" for width in (2, 4) for size in sizes
    }


def test_padding_rows_do_not_grow() -> None:
    bench = Bench(CpuDevice(), **OPTIONS)
    bench.diffusion.capture([4])
    latents_RTM = bench.diffusion._denoiser.latents_RTM
    latents_RTM[-1] = np.inf
    bench.speak("a", random_codes(20))
    bench.settle(bench.device)
    bench.expect("a", random_codes(20))
    assert not latents_RTM[-1].any()
