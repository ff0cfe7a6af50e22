"""Sums over ranks through the memory of their devices, alone and within the norm behind them: under the interpreter, in many
orders, and between GPUs, eagerly and in graphs."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn
from triton.runtime.errors import InterpreterError

pytest.importorskip("triton")

from omni.parallel import Communicator, open_communicator, sum_kernel
from omni.parallel.rank_memory import RankMemory
from omni_ar.kernels.norm import PartialSum, add_rms_norm, residual_sum
from omni_ar.kernels.norm import kernel as norm_kernel
from omni_ar.kernels.overlap import kernels_in_turn
from tests.stages.omni_ar.kernels.interleaved_kernels import InterleavedRanks
from tests.support.exact import HERE, assert_near, served
from tests.support.gpu_compiler import GpuCompiler
from tests.support.tiers import MUTATION, SLOW, chosen, few

EPS = 1e-6
MOST_BYTES = 16 * 1024

on_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted without a GPU")


def drawn(call: int, rank: int, *shape: int) -> Tensor:
    """With zeros of both signs: a zero in memory stands for a number that has not arrived."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    x = torch.randn(shape, generator=generator)
    return x.where(torch.rand(shape, generator=generator) > 0.3, torch.tensor(-0.0 if call % 2 else 0.0))


def shapes(call: int) -> tuple[int, int, int]:
    """Rows, width, and parts of a rank's part; 0 for one that is not split. Sizes change from call to call, and so do tiles."""
    chance = Random(call)
    rows, width = chance.choice([(1, 64), (1, 1000), (3, 300), (7, 129), (2, 2048), (4, 24), (40, 8), (1, 1)])
    return rows, width, chance.choice([0, 0, 3])


def drawn_parts(
    call: int, size: int, shape: tuple[int, int, int], dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """What each rank adds, and the same as one part in `dtype`."""
    rows, width, parts = shape
    given = [drawn(call, rank, *((parts,) if parts else ()), rows, width) for rank in range(size)]
    given = [each.to(torch.float32 if parts else dtype) for each in given]
    return given, [each.sum(0).to(dtype) if parts else each for each in given]


def check_call(
    call: int,
    peers: RankMemory,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, int, int] | None = None,
) -> None:
    """shape: as of `shapes`, if it is not that of the call."""
    size = len(peers.bases)
    rows, width, _ = shape = shape or shapes(call)
    given, rounded = drawn_parts(call, size, shape, dtype)
    total_TD = torch.zeros(rows, width)
    for each in rounded:
        total_TD += each.float()
    delta_TD, own = total_TD.to(dtype), given[peers.rank].to(device)
    x_TD, weight_D = drawn(call, size, rows, width).to(dtype), drawn(call, size + 1, width).to(dtype)
    expected_TD, way = x_TD + delta_TD, call % 3
    if way == 0:
        assert torch.equal(peers.all_reduce(rounded[peers.rank].to(device)).cpu(), delta_TD), (call, shape)
    elif way == 1:
        assert torch.equal(norm_kernel.residual_sum(x_TD.to(device), own, peers).cpu(), expected_TD), (call, shape)
    else:
        arguments = (x_TD.to(device), own, weight_D.to(device), EPS, None, peers)
        normed_TD, sum_TD = (each.cpu() for each in norm_kernel.add_rms_norm(*arguments))
        assert torch.equal(sum_TD, expected_TD), (call, shape)
        exact_TD = expected_TD.double()
        scale_T1 = (exact_TD.square().mean(-1, keepdim=True) + EPS).rsqrt()
        assert_near(normed_TD, exact_TD * scale_T1 * weight_D.double())


def interleaved(size: int, seed: int, calls: int) -> None:
    """Calls of all kernels by ranks in turn. Raises AssertionError for a wrong sum."""
    nbytes = sum_kernel.bytes_needed(size, MOST_BYTES)
    memories = [torch.zeros(nbytes // 4, dtype=torch.int32) for _ in range(size)]
    bases = torch.tensor([memory.data_ptr() for memory in memories])

    def host(rank: int) -> None:
        for call in range(seed, seed + calls):
            check_call(call, RankMemory(rank, bases, MOST_BYTES), torch.device("cpu"), torch.float32)

    ranks = InterleavedRanks(memories, seed)
    with ranks.launching((sum_kernel, "_all_reduce"), (norm_kernel, "_rms_norm")):
        ranks.run([partial(host, rank) for rank in range(size)])
    for memory in memories:
        assert memory[0] == calls << 16
        assert not memory[1:].any(), "a number that was read has not been taken out"


@on_the_cpu
@pytest.mark.parametrize(("size", "seed"), few(3, [(2, 0), (3, 4), (2, 1), (2, 2), (2, 3), (4, 5)], SLOW))
def test_interleaved_ranks_sum(size: int, seed: int) -> None:
    interleaved(size, seed, calls=9)


@pytest.mark.parametrize(("rows", "width", "dtype"), [(3, 300, torch.float32), served(2, 2048, torch.bfloat16)])
def test_sums_with_parts_that_have_arrived(rows: int, width: int, dtype: torch.dtype) -> None:
    """The other rank's: on one GPU and in one process, where compute-sanitizer sees the kernels."""
    nbytes = sum_kernel.bytes_needed(2, MOST_BYTES)
    own, other = (torch.zeros(nbytes, dtype=torch.uint8, device=HERE) for _ in range(2))
    peers = RankMemory(0, torch.tensor([own.data_ptr(), other.data_ptr()], device=HERE), MOST_BYTES)
    for call in range(6):
        shape = rows, width, 3 * (call // 3)
        _, rounded = drawn_parts(call, 2, shape, dtype)
        arrived = rounded[1].where(rounded[1] != 0, -0.0).flatten().view(torch.uint8)
        start = nbytes - (3 - 2 * (call % 2)) * MOST_BYTES
        own[start : start + arrived.numel()] = arrived.to(HERE)
        check_call(call, peers, HERE, dtype, shape)
    assert not own[4:].any(), "a number that was read has not been taken out"


FAULTS = {
    "one slot": ("_CALL_BIT) & 1", "_CALL_BIT) & 0"),
    "no wait": ("> 0:", "> 1:"),
    "a wait for any number": ("while tl.max(", "while tl.min("),
    "numbers stay": ("tl.zeros_like(word)", "word"),
    "zeros as they are": ("word == 0, tl.full(word.shape, MINUS_ZERO, WORD), word", "word == 0, word, word"),
    "the state of the first program": ("1 - tl.num_programs(0) + _CALL, 1)", "_CALL, 0)"),
    "the state of each program": ("1 - tl.num_programs(0) + _CALL, 1)", "_CALL, _CALL)"),
    "no state": ("1 - tl.num_programs(0) + _CALL, 1)", "0, 0)"),
    "the part of the next rank": ("_data(own, slot * SIZE + rank,", "_data(own, slot * SIZE + RANK,"),
    "own part left out": ("tl.where(inside, x.to(tl.float32), 0.0)", "0.0"),
}


@on_the_cpu
@pytest.mark.thorough
@pytest.mark.parametrize("fault", chosen(["one slot", "numbers stay", "no wait"], FAULTS, MUTATION))
def test_a_planted_fault_is_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, (before, after) = Path(sum_kernel.__file__).read_text(), FAULTS[fault]
    assert text.count(before) == 1
    (tmp_path / "faulty_kernel.py").write_text(text.replace(before, after))
    spec = importlib.util.spec_from_file_location("faulty_kernel", tmp_path / "faulty_kernel.py")
    assert spec is not None
    assert spec.loader is not None
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)
    for module in (sum_kernel, norm_kernel):
        monkeypatch.setattr(module, "tile_sum", faulty.tile_sum)
    with pytest.raises((AssertionError, InterpreterError)):
        interleaved(2, seed=1, calls=24)


COMPILED = """
from omni.parallel.sum_kernel import _all_reduce
from omni_ar.kernels.norm.kernel import _rms_norm

SIZES = dict(RANK=1, SIZE=3, MOST_BYTES=2**19, OVERLAP=True)
NORM = dict(ADD=True, NORM=True, PARTS=4, WIDTH=2048, PREFETCH_BYTES=1024, BLOCK_T=1, BLOCK_D=2048)
KERNELS = {_all_reduce: dict(BLOCK=1024), _rms_norm: NORM}
TYPES = dict(bases_ptr="*i64", delta_ptr="*fp32", eps="fp32")
"""


@pytest.mark.thorough
def test_the_kernels_compile_for_a_gpu(gpu_compiler: GpuCompiler, tmp_path: Path) -> None:
    gpu_compiler.compile(COMPILED, tmp_path)


LAYERS, WIDTH = 24, 2048
GPU_SHAPES = [(1, WIDTH), (8, WIDTH), (128, WIDTH), (1, 8192), (5, 3584), (33, 128)]


def work_of_a_gpu(rank: int, size: int, store: str) -> None:
    device = torch.device("cuda", rank)
    ranks = open_communicator(FileStore(store, size), rank, size, device, 60)
    torch.cuda.set_device(device)
    for call in range(90):
        dtype = (torch.float32, torch.bfloat16, torch.float16)[call % 4 % 3]
        peers = ranks.rank_memory(torch.empty(1, dtype=dtype, device=device))
        assert peers is not None, "the devices reach each other's memory"
        check_call(call, peers, device, dtype)
    for rows, width in GPU_SHAPES:
        chain = Chain(ranks, device, rows, width)
        with kernels_in_turn(), plain_sums():
            expected = chain.run()
        assert torch.equal(chain.run(), expected), (rows, width)
        replayed(chain, expected)
    ranks.close()


class Chain:
    """Layers whose parts of a residual addition differ from rank to rank; every third addition has no norm behind it."""

    def __init__(self, ranks: Communicator, device: torch.device, rows: int, width: int) -> None:
        self._ranks = ranks
        self._x_TD = drawn(0, 9, rows, width).to(device, torch.bfloat16)
        self._weight_D = drawn(0, 8, width).to(device, torch.bfloat16)
        self._own_TD = drawn(0, ranks.rank, rows, width).to(device, torch.bfloat16)

    def run(self) -> Tensor:
        x_TD = normed_TD = self._x_TD
        for layer in range(LAYERS):
            part = self._own_TD * normed_TD
            if layer % 3 == 2:
                part = torch.stack([part.float(), self._own_TD.float()])
            delta = PartialSum(part, self._ranks)
            if layer % 3 == 1:
                x_TD = residual_sum(x_TD, delta)
                normed_TD = x_TD / 8
            else:
                normed_TD, x_TD = add_rms_norm(x_TD, delta, self._weight_D, EPS, prefetch=self._weight_D)
        return x_TD


@contextmanager
def plain_sums() -> Iterator[None]:
    """While entered, additions are summed by `all_reduce`, before a kernel adds them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialSum, "rank_memory", lambda *_: None)
        yield


def replayed(chain: Chain, expected: Tensor) -> None:
    """Replays without a wait between, so that a rank runs ahead of the other as far as it can."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        chain.run()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = chain.run()
        wrong = torch.zeros((), dtype=torch.int64, device=expected.device)
        for _ in range(100):
            out.fill_(torch.nan)
            graph.replay()
            wrong += (out != expected).sum()
        stream.synchronize()
        assert not wrong.item()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_sums_over_gpus_are_exact(tmp_path: Path) -> None:
    spawn(work_of_a_gpu, (2, str(tmp_path / "store")), 2)
