"""The diffusion stage on a model small enough to check by hand."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.device.cpu import CpuDevice
from omni.testing import LaunchGuard
from omni.testing.faults import FaultyDevice
from omni.testing.simulation.late import QueuedDevice
from tests.support.frame_bench import POISON, feed_at_random, frames, random_codes
from tests.support.painter import BLOCK, REPEATS, STEPS, Bench, Painter, Span, noise_of, spans

SMALL = {"first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}


@pytest.mark.parametrize(
    ("first", "later", "before", "after"), [(1, 1, 0, 0), (1, 2, 1, 1), (2, 1, 3, 0), (3, 2, 0, 2), (1, 1, 2, 3)]
)
@pytest.mark.parametrize("context", [0, 3, 14])
def test_streamed_frames_make_the_waves_of_their_windows(
    first: int, later: int, before: int, after: int, context: int
) -> None:
    options = {"first_chunk_blocks": first, "chunk_blocks": later, "blocks_before": before, "blocks_after": after}
    bench, totals = Bench(CpuDevice(), Painter(context), **options), (1, BLOCK, 4 * BLOCK, 7 * BLOCK + 2)
    for total in totals:
        name, codes = f"{total} frames", random_codes(total, total)
        bench.open(name)
        bench.give_voice(name, 2, noise_of(name, total))
        for frame in codes:
            bench.feed_host(name, frames(torch.from_numpy(frame[None])))
            bench.tick()
        bench.end(name)
        bench.model.begun.clear()
        bench.settle(bench.device)
        bench.expect(name, codes, voice=2)
        begun = [span for batch in bench.model.begun for span in batch]
        assert begun == spans(total, bench.options)[len(spans(total, bench.options)) - len(begun) :]
    assert bench.diffusion.counters()["frames"] == sum(totals)
    assert not bench.held


def test_a_window_that_holds_everything_is_the_whole() -> None:
    bench = Bench(CpuDevice(), **SMALL | {"first_chunk_blocks": 9})
    codes = random_codes(20)
    bench.speak("a", codes)
    bench.settle(bench.device)
    assert bench.model.begun == [[Span(0, 0, 20, 20)]]
    bench.expect("a", codes)
    counted = {"windows": 1, "steps": STEPS, "frames": 20, "samples": len(bench.wave("a")), "retries": 0}
    assert bench.diffusion.counters() == counted


def test_the_first_chunk_waits_for_its_look_ahead_and_for_no_more() -> None:
    bench = Bench(CpuDevice(), Painter(context=0), **SMALL)
    codes = random_codes(2 * BLOCK)
    bench.open("a")
    bench.give_voice("a", 0)
    bench.feed_pages("a", codes[:-1])
    bench.settle(bench.device)
    assert not bench.produced
    bench.feed_pages("a", codes[-1:])
    bench.settle(bench.device)
    assert len(bench.wave("a")) == BLOCK * REPEATS * bench.model.samples_per_latent
    bench.abort("a")
    bench.settle(bench.device)
    assert not bench.held


def test_windows_do_not_depend_on_when_the_end_is_known() -> None:
    total = 4 * BLOCK  # just a first chunk, a later one and its look-ahead
    for early in (True, False):
        bench = Bench(CpuDevice(), **SMALL)
        codes = random_codes(total)
        bench.open("a")
        bench.give_voice("a", 1, noise_of("a", total))
        bench.feed_pages("a", codes)
        if early:
            bench.end("a")
        bench.settle(bench.device)
        if not early:
            assert not bench.ends
            bench.end("a")
            bench.settle(bench.device)
        assert [len(batch) for batch in bench.model.begun] == [1, 1, 1]
        bench.expect("a", codes)


def test_rows_join_at_any_step_and_each_is_at_its_own() -> None:
    device = QueuedDevice()
    bench = Bench(device, **SMALL)
    codes = {name: random_codes(9, seed) for seed, name in enumerate("abc")}
    for name, own in codes.items():
        bench.speak(name, own)
        bench.tick()
        device.run()
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)
    assert any(len(set(steps)) > 1 for _, _, steps in bench.model.steps)
    assert max(rows for rows, _, _ in bench.model.steps) == 3


def test_at_most_two_steps_are_under_way() -> None:
    device = QueuedDevice()
    bench = Bench(device, **SMALL)
    bench.speak("a", random_codes(9))
    under_way = set()
    while "a" not in bench.ends:
        while bench.tick():
            pass
        under_way.add(bench.diffusion.counters()["steps"] - len(bench.model.steps))
        device.run(operations=1)
    assert under_way == {0, 1, 2}
    bench.settle(device)
    bench.expect("a", random_codes(9))


def test_steps_are_as_wide_as_their_windows() -> None:
    bench = Bench(CpuDevice(), **SMALL)
    bench.speak("a", random_codes(6 * BLOCK))
    bench.settle(bench.device)
    lengths = [length // (BLOCK * REPEATS) for _, length, _ in bench.model.steps]
    assert lengths == [2] * STEPS + [4] * STEPS * 2 + [2] * STEPS


@settings(max_examples=30)
@given(data=st.data())
def test_any_arrival_order_batching_and_timing_gives_each_its_own_wave(data: st.DataObject) -> None:
    """Requests, inputs and device progress in any order; more requests than rows; inputs longer than a row's ring."""
    device = QueuedDevice()
    options = {
        "first_chunk_blocks": data.draw(st.integers(1, 2)),
        "chunk_blocks": data.draw(st.integers(1, 2)),
        "blocks_before": data.draw(st.integers(0, 2)),
        "blocks_after": data.draw(st.integers(0, 2)),
    }
    bench = Bench(device, Painter(data.draw(st.integers(0, 9))), max_num_seqs=2, **options)
    codes = {name: random_codes(data.draw(st.integers(1, 17)), seed) for seed, name in enumerate("abc")}
    bench.open(*codes)
    for name, own in codes.items():
        bench.give_voice(name, 1, noise_of(name, len(own)))
    refs = feed_at_random(bench, "diffusion", codes, data)
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)
    assert all(ref.freed for ref in refs)
    assert not bench.held


def test_device_memory_is_touched_in_phases_only() -> None:
    device = CpuDevice()
    bench = Bench(device, **SMALL)
    codes = random_codes(7)
    bench.speak("a", codes)
    with LaunchGuard(device) as guard:
        bench.settle(device)
    bench.expect("a", codes)
    phases = {
        "copy_upload",
        "gather_rows",
        "begin_windows",
        "denoise_rows",
        "render_part",
        "keep_samples",
        "download_samples",
    }
    assert guard.launched == phases


def test_a_row_starts_anew_for_its_next_request() -> None:
    device = QueuedDevice()
    bench = Bench(device, max_num_seqs=1, **SMALL)
    codes = random_codes(8, 1)
    bench.speak("gone", random_codes(12, 2))
    bench.tick()  # its first steps are on the device when it goes, and the row is given on
    bench.abort("gone")
    bench.speak("next", codes)
    bench.tick()
    assert bench.held["rows"] == 1
    bench.settle(device)
    assert "gone" not in bench.produced
    bench.expect("next", codes)


def test_a_paused_request_begins_no_window_and_the_others_do() -> None:
    bench = Bench(CpuDevice(), **SMALL)
    codes = random_codes(11)
    bench.speak("a", codes)
    bench.pause("a")
    bench.speak("b", codes)
    bench.settle(bench.device)
    assert "a" not in bench.produced
    bench.expect("b", codes)
    bench.resume("a")
    bench.settle(bench.device)
    bench.expect("a", codes)
    assert not bench.held


def test_first_parts_are_rendered_before_later_ones() -> None:
    bench = Bench(CpuDevice(), Painter(context=0), first_chunk_blocks=1, chunk_blocks=2, blocks_after=0)
    bench.open("later", "first")
    bench.give_voice("later", 0)
    bench.give_voice("first", 0)
    bench.feed_pages("later", random_codes(BLOCK))
    bench.settle(bench.device)
    bench.model.parts.clear()
    bench.feed_pages("later", random_codes(2 * BLOCK))
    bench.feed_pages("first", random_codes(BLOCK))
    bench.settle(bench.device)
    assert bench.model.parts == [(1, BLOCK * REPEATS), (1, 2 * BLOCK * REPEATS)]


def test_a_batch_with_a_first_part_is_rendered_before_others() -> None:
    device = QueuedDevice()
    bench = Bench(device, Painter(context=0), first_chunk_blocks=1, chunk_blocks=1, blocks_after=0)

    def compute() -> None:
        """All but the copies to the host: the buffers of samples stay in use."""
        while bench.tick():
            device.run({"diffusion"})

    for name, count in (("last", 1), ("later", BLOCK)):
        bench.open(name)
        bench.give_voice(name, 0)
        bench.feed_pages(name, random_codes(BLOCK))
        compute()
        bench.feed_pages(name, random_codes(count))
    bench.end("last")
    bench.open("first")
    bench.give_voice("first", 0)
    bench.feed_pages("first", random_codes(BLOCK))
    compute()
    assert len(bench.model.parts) == 2
    bench.settle(device)
    assert [rows for rows, _ in bench.model.parts[2:]] == [2, 1]


@pytest.mark.plants_faults
def test_a_failing_window_fails_its_request_only() -> None:
    bench = Bench(CpuDevice(), **SMALL)
    bad, good = random_codes(9, 1), random_codes(9, 2)
    bad[4, 1] = POISON
    ref = bench.speak("bad", bad)
    bench.speak("good", good)
    bench.settle(bench.device)
    assert "stage 'diffusion' failed while beginning a window, in phase begin_windows" in bench.error("bad")
    assert ref.freed
    bench.expect("good", good)
    assert not bench.held


CODES = {name: random_codes(11, seed) for seed, name in enumerate("ab")}


@pytest.mark.plants_faults
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("phase", "number"),
    # The first upload is that of the frames into the rows' rings.
    [
        ("begin_windows", 0),
        ("render_part", 0),
        ("keep_samples", 0),
        ("download_samples", 0),
        *(("copy_upload", n) for n in range(1, 7)),
    ],
)
def test_work_that_can_be_retried_fails_no_request(phase: str, number: int, after: bool) -> None:
    device = FaultyDevice()
    bench = Bench(device, **SMALL)
    for name, own in CODES.items():
        bench.speak(name, own)
    fault = device.faults.plant(("diffusion", phase), number, after=after)
    bench.settle(device)
    assert not fault.left
    for name, own in CODES.items():
        bench.expect(name, own)
    assert bench.diffusion.counters()["retries"] == 1
    assert not bench.held


@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_step_that_fails_fails_its_rows_and_the_stage_goes_on(number: int) -> None:
    device = FaultyDevice()
    bench = Bench(device, **SMALL)
    for name, own in CODES.items():
        bench.speak(name, own)
    fault = device.faults.plant(("diffusion", "denoise_rows"), number, after=True)
    bench.settle(device)
    assert not fault.left
    for name in CODES:
        assert "failed while denoising a window, in phase denoise_rows" in bench.error(name)
    assert not bench.held
    later = random_codes(14, 9)
    bench.speak("later", later)
    bench.settle(device)
    bench.expect("later", later)


def test_a_model_that_returns_another_shape_is_reported() -> None:
    bench = Bench(FaultyDevice(), **SMALL)
    bench.model.render = lambda latents_BTM: latents_BTM[:, 1:, 0]  # type: ignore[method-assign]
    bench.speak("a", CODES["a"])
    bench.settle(bench.device)
    assert " gave samples" in bench.error("a")
    bench.model.denoise = lambda state, latents_BTM, rows_B, steps_B: latents_BTM[:, 1:]  # type: ignore[method-assign]
    bench.speak("b", CODES["b"])
    bench.settle(bench.device)
    assert " gave latents" in bench.error("b")
    assert not bench.held


def precision() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("tf32", [True, False])
def test_the_model_computes_everything_in_the_chosen_precision(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, before = Bench(CpuDevice(), tf32=tf32), precision()
    seen: set[tuple[str, tuple[bool, bool]]] = set()

    def watch(name: str, function: Callable[..., object]) -> None:
        def watched(*args: object) -> object:
            seen.add((name, precision()))
            return function(*args)

        monkeypatch.setattr(bench.model, name, watched)

    watch("begin", bench.model.begin)
    watch("denoise", bench.model.denoise)
    watch("render", bench.model.render)
    bench.speak("a", random_codes(20))
    bench.settle(bench.device)
    bench.expect("a", random_codes(20))
    assert seen == {(name, (tf32, tf32)) for name in ("begin", "denoise", "render")}
    assert precision() == before
