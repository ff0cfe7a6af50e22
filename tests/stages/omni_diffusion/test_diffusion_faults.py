"""One thing goes wrong somewhere in the stage: nobody else hears of it."""

import pytest

from omni.stage import Failed
from tests.support.faults import FaultyDevice
from tests.support.frame_bench import random_codes
from tests.support.painter import Bench

OPTIONS = {"first_chunk_blocks": 1, "chunk_blocks": 2, "blocks_before": 1, "blocks_after": 1}
CODES = {name: random_codes(11, seed) for seed, name in enumerate("ab")}


def speak(bench: Bench) -> None:
    for name, own in CODES.items():
        bench.speak(name, own)


@pytest.mark.plants_faults
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("phase", "number"),
    # The first upload is that of the frames into the rows' rings.
    [("begin_windows", 0), ("render_piece", 0), ("download_samples", 0), *(("copy_upload", n) for n in range(1, 7))],
)
def test_what_can_be_tried_again_is_and_nobody_fails(phase: str, number: int, after: bool) -> None:
    device = FaultyDevice()
    bench = Bench(device, **OPTIONS)
    speak(bench)
    fault = device.faults.plant(("diffusion", phase), number, after=after)
    bench.settle(device)
    assert not fault.left
    for name, own in CODES.items():
        bench.expect(name, own)
    assert not bench.held


@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_step_that_fails_fails_its_rows_and_the_stage_goes_on(number: int) -> None:
    device = FaultyDevice()
    bench = Bench(device, **OPTIONS)
    speak(bench)
    fault = device.faults.plant(("diffusion", "denoise_rows"), number, after=True)
    bench.settle(device)
    assert not fault.left
    for name in CODES:
        assert isinstance(failed := bench.ends[name], Failed)
        assert "failed while denoising a window, in phase denoise_rows" in str(failed.error)
    assert not bench.held
    later = random_codes(14, 9)
    bench.speak("later", later)
    bench.settle(device)
    bench.expect("later", later)


def test_a_model_that_gives_another_shape_is_found_out() -> None:
    bench = Bench(FaultyDevice(), **OPTIONS)
    bench.model.render = lambda latents_BTM: latents_BTM[:, 1:, 0]  # type: ignore[method-assign]
    bench.speak("a", CODES["a"])
    bench.settle(bench.device)
    assert isinstance(failed := bench.ends["a"], Failed)
    assert "the model gave samples" in str(failed.error)
    bench.model.denoise = lambda state, latents_BTM, rows_B, steps_B: latents_BTM[:, 1:]  # type: ignore[method-assign]
    bench.speak("b", CODES["b"])
    bench.settle(bench.device)
    assert isinstance(failed := bench.ends["b"], Failed)
    assert "the model gave latents" in str(failed.error)
    assert not bench.held
