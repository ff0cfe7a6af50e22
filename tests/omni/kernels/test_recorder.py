"""Launches are recorded during a recording, and only where it is active."""

import os
import threading

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from omni.kernels import RecordingDevice, VariantRecorder

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="kernels do not run on the CPU here")


@triton.jit
def double(x_ptr, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < count) * 2, mask=at < count)


def launch(count: int = 3, block: int = 4, at: int = 0) -> torch.Tensor:
    x = torch.ones(4 + at)[at:]
    double[(1,)](x, count, BLOCK=block)
    return x


def test_a_launch_is_recorded_and_not_made():
    recorder = VariantRecorder()
    with recorder.recording():
        assert launch().tolist() == [1, 1, 1, 1]
        launch()
        launch(count=4)
        launch(count=16)
        launch(block=8)
        launch(block=8, at=1)
    assert [dict(variant.arguments)["BLOCK"] for variant in recorder.variants] == [4, 4, 8, 8]


@interpreted
def test_a_launch_may_also_be_made():
    recorder = VariantRecorder(launches=True)
    with recorder.recording():
        assert launch().tolist() == [2, 2, 2, 1]
    assert len(recorder.variants) == 1


@interpreted
def test_other_threads_and_later_launches_are_as_always():
    outer, inner, results, run = VariantRecorder(), VariantRecorder(), [], type(double).run
    with outer.recording():
        thread = threading.Thread(target=lambda: results.append(launch()))
        thread.start()
        thread.join()
        with inner.recording():
            launch()
        launch(block=8)
    assert type(double).run is run
    results.append(launch())
    assert [result.tolist() for result in results] == [[2, 2, 2, 1]] * 2
    assert [len(recorder.variants) for recorder in (outer, inner)] == [1, 1]


def test_a_launch_with_an_unknown_argument_is_noted():
    recorder = VariantRecorder()
    with recorder.recording():
        double[(1,)](object(), 3, BLOCK=4)
    assert recorder.unnamed == {f"{__name__}:double"}
    assert not recorder.variants


def test_a_phase_that_needs_contents_ends_there():
    recorder = VariantRecorder()
    device = RecordingDevice(torch.device("cuda", 0), recorder)
    stream = device.stream("s")

    def phase(host: torch.Tensor, x: torch.Tensor) -> None:
        double[(1,)](x, 3, BLOCK=4)
        host.copy_(x)
        double[(1,)](x, 3, BLOCK=8)

    device.launch(stream, phase, torch.zeros(4), device.zeros((4,), torch.float32))
    assert [dict(variant.arguments)["BLOCK"] for variant in recorder.variants] == [4]
    assert device.failed == {"phase"}
