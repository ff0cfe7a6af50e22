"""Noise is a function of seed, sample and place alone."""

import msgspec
import numpy as np
import pytest

from omni.device.cpu import CpuDevice
from omni.errors import InputError
from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import Failed, Open
from omni.testing.stages.driver import SOURCE
from omni_diffusion.inputs import Voice
from omni_diffusion.options import DiffusionOptions
from omni_diffusion.windows import DenoisingWindow, Noise
from tests.support.frame_bench import random_codes
from tests.support.painter import BLOCK, REPEATS, WIDTH, Bench, drawn


def ask(bench: Bench, name: str, count: int, sampling: SamplingParams, sample_index: int = 0) -> None:
    bench.diffusion.inbox.append(Open(name, sampling, frozenset([SOURCE]), sample_index=sample_index))
    bench.feed_host(name, Payload(Voice(index=1)))
    bench.feed_pages(name, random_codes(count))
    bench.end(name)


def test_a_seed_makes_the_same_sound_beside_others_and_in_every_batch() -> None:
    bench = Bench(CpuDevice(), max_num_seqs=2, chunk_blocks=2)
    for name, seed in (("a", 5), ("b", 6), ("again", 5), ("other", 7)):
        ask(bench, name, 13, SamplingParams(seed=seed))
    bench.settle(bench.device)
    for name, seed in (("a", 5), ("b", 6), ("again", 5), ("other", 7)):
        bench.expect(name, random_codes(13), noise=drawn(seed, 13))
    assert np.abs(bench.wave("a") - bench.wave("b")).max() > 0.01


def test_samples_of_one_seed_differ_and_unseeded_requests_do() -> None:
    bench = Bench(CpuDevice())
    ask(bench, "0", 5, SamplingParams(seed=3))
    ask(bench, "1", 5, SamplingParams(seed=3), sample_index=1)
    ask(bench, "free", 5, SamplingParams())
    ask(bench, "freer", 5, SamplingParams())
    bench.settle(bench.device)
    bench.expect("1", random_codes(5), noise=drawn(3, 5, sample_index=1))
    waves = [bench.wave(name) for name in ("0", "1", "free", "freer")]
    assert all(np.abs(a - b).max() > 0.01 for i, a in enumerate(waves) for b in waves[:i])


def test_the_stage_may_have_a_seed_of_its_own() -> None:
    bench = Bench(CpuDevice(), sampling=SamplingParams(seed=11))
    ask(bench, "a", 5, SamplingParams())
    ask(bench, "b", 5, SamplingParams(seed=12))
    bench.settle(bench.device)
    bench.expect("a", random_codes(5), noise=drawn(11, 5))
    bench.expect("b", random_codes(5), noise=drawn(12, 5))


def test_windows_see_the_same_noise_however_they_are_cut() -> None:
    whole = drawn(2, 20)
    noise = Noise(2, 0, BLOCK, REPEATS, WIDTH)
    for first, frames in ((0, 6), (3, 9), (3, 15), (15, 5)):
        cut = noise.of(DenoisingWindow(first, 0, frames, frames, last=False))
        np.testing.assert_array_equal(cut, whole[first * REPEATS : (first + frames) * REPEATS])


def test_noise_is_normal_and_blocks_are_strangers() -> None:
    blocks = Noise(1, 0, 50, 4, 20).of(DenoisingWindow(0, 0, 500, 500, last=True)).reshape(10, -1)
    assert blocks.dtype == np.float32
    assert np.abs(blocks.mean(1)).max() < 5 / np.sqrt(blocks.shape[1])
    correlations = np.corrcoef(blocks)
    np.testing.assert_allclose(np.diag(np.cov(blocks)), 1, atol=0.1)
    assert np.abs(correlations - np.eye(10)).max() < 5 / np.sqrt(blocks.shape[1])


def test_of_sampling_parameters_the_seed_alone_is_known() -> None:
    bench = Bench(CpuDevice())
    bench.diffusion.check(SamplingParams(seed=1), "sampling.it")
    with pytest.raises(InputError, match=r"sampling\.it\.temperature.*only seed"):
        bench.diffusion.check(SamplingParams(temperature=1.0, seed=1), "sampling.it")
    bench.diffusion.inbox.append(Open("a", SamplingParams(top_k=1), frozenset([SOURCE])))
    bench.settle(bench.device)
    assert isinstance(bench.ends["a"], Failed)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"first_chunk_blocks": 0}, "first_chunk_blocks must be at least 1"),
        ({"chunk_blocks": 0}, "chunk_blocks must be at least 1"),
        ({"blocks_before": -1}, "blocks_before must be at least 0"),
        ({"blocks_after": -1}, "blocks_after must be at least 0"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"guidance": -0.5}, "guidance must be a finite number"),
        ({"guidance": float("nan")}, "guidance must be a finite number"),
        ({"max_num_seqs": 16, "graph_batch_sizes": (17,)}, "graph_batch_sizes must be"),
        ({"sampling": SamplingParams(temperature=1.0)}, r"sampling\.temperature has no effect"),
    ],
)
def test_options_are_checked(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        msgspec.structs.replace(DiffusionOptions(), **options)
