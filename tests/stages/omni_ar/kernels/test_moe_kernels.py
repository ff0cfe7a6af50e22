"""Kernels of mixtures of experts against brute force in float64: under the interpreter, and on a GPU at many random shapes."""

import random
from copy import copy

import pytest
import torch

pytest.importorskip("triton")

from omni_ar.kernels.moe import reference
from omni_ar.kernels.moe.combine import combine
from omni_ar.kernels.moe.experts import Experts, Norm, SharedExpert
from omni_ar.kernels.moe.few import mix_few
from omni_ar.kernels.moe.grouped import mix_grouped, multiply_down, multiply_gate_up
from omni_ar.kernels.moe.grouping import route_and_group
from omni_ar.kernels.moe.kernel import mix_experts
from omni_ar.kernels.moe.settings import (
    FewProduct,
    FewSettings,
    GroupedProduct,
    GroupedSettings,
    default_settings,
)
from tests.support.tiers import SLOW
from tests.support.tiers import few as few_of

pytestmark = pytest.mark.thorough

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Largest error as a share of the largest result.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CLOSE = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def few(gate_i=4, gate_d=16, down_d=4, down_i=8, warps=4):
    return FewSettings(
        gate=FewProduct(i=gate_i, d=gate_d, warps=warps), down=FewProduct(i=down_i, d=down_d, warps=warps)
    )


def grouped(block_m=16, n=16, k=16, left=False, stages=2, warps=4, tma=False, halves=False, overlap=False):
    tile = GroupedProduct(n=n, k=k, stages=stages, warps=warps, left=left, tma=tma, halves=halves)
    return GroupedSettings(block_m=block_m, overlap=overlap, gate=tile, down=tile)


class Case:
    """Random weights and tokens, routed as asked or at random, and what float64 makes of them one pair at a time."""

    def __init__(self, tokens, width, intermediate, experts, top_k, seed=0, dtype=torch.float32, routing=None):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        draw = lambda *shape: torch.randn(shape, generator=generator, device=DEVICE)  # noqa: E731
        x_TD = draw(tokens, width)
        gate_up_EXD = draw(experts, 2 * intermediate, width) * width**-0.5
        down_EDI = draw(experts, width, intermediate) * intermediate**-0.5
        self.logits_TE, self.top_k = draw(tokens, experts), top_k
        if routing is not None:
            self.logits_TE.scatter_add_(1, routing.to(DEVICE), torch.full(routing.shape, 20.0, device=DEVICE))
        self.x_TD, self.gate_up_EXD, self.down_EDI = (t.to(dtype) for t in (x_TD, gate_up_EXD, down_EDI))

    def expected(self):
        x_TD, gate_up_EXD, down_EDI = (t.double() for t in (self.x_TD, self.gate_up_EXD, self.down_EDI))
        weight_TK, expert_TK = self.logits_TE.double().softmax(-1).topk(self.top_k)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        y_TD = torch.zeros_like(x_TD)
        for expert in range(down_EDI.shape[0]):
            token, k = (expert_TK == expert).nonzero(as_tuple=True)
            out = gated(x_TD[token], gate_up_EXD[expert], down_EDI[expert])
            y_TD.index_add_(0, token, out * weight_TK[token, k][:, None])
        return y_TD

    def run(self, settings):
        weight_TK, _, groups = route_and_group(self.logits_TE, self.top_k, True, settings.block_m)
        given = (self.x_TD, self.gate_up_EXD, groups, self.top_k)
        hidden_SI = multiply_gate_up(*given, settings.gate, settings.overlap)
        y_SD = multiply_down(hidden_SI, self.down_EDI, groups, settings.down, settings.overlap)
        return combine(y_SD, weight_TK, settings.overlap)

    def check(self, settings):
        y_TD, expected = self.run(settings), self.expected()
        assert y_TD.dtype == self.x_TD.dtype
        error = (y_TD.double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[y_TD.dtype]


class Mixture:
    """A random mixture on its own, and what float64 makes of it with the experts that the router's logits, rounded, choose."""

    def __init__(
        self, tokens, width, intermediate, experts, top_k, shared=0, norm_topk=True, seed=0, dtype=torch.float32
    ):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        draw = lambda *shape: torch.randn(shape, generator=generator, device=DEVICE)  # noqa: E731
        weight = lambda *shape: (draw(*shape) * shape[-1] ** -0.5).to(dtype)  # noqa: E731
        # With few tokens, all might be close calls.
        drawn = tokens if tokens > 4 else 24 * tokens
        self.x_TD, self.delta_TD = draw(drawn, width).to(dtype), draw(drawn, width).to(dtype)
        self.norm = Norm(draw(width).to(dtype), 1e-6)
        own = (weight(2 * shared, width), weight(width, shared), weight(1, width)) if shared else ()
        weights = (
            weight(experts, width),
            weight(experts, 2 * intermediate, width),
            weight(experts, width, intermediate),
        )
        self.experts = Experts(*weights, top_k, norm_topk, SharedExpert(*own) if shared else None)
        if drawn > tokens:
            close = self._close(self._normed(self.x_TD), dtype) | self._close(
                self._normed(self.x_TD + self.delta_TD), dtype
            )
            clear_T = (~close).nonzero().flatten()[:tokens]
            assert len(clear_T) == tokens
            self.x_TD, self.delta_TD = self.x_TD[clear_T], self.delta_TD[clear_T]

    def check(self, run, *settings):
        self._check(run(self.x_TD, self.delta_TD, self.norm, self.experts, *settings), self.x_TD + self.delta_TD)
        part_3TD = self.delta_TD.float() * torch.tensor([1 / 8, 5 / 8, 1 / 4], device=DEVICE)[:, None, None]
        in_parts = run(self.x_TD, part_3TD, self.norm, self.experts, *settings)
        self._check(in_parts, self.x_TD + part_3TD.sum(0).to(self.x_TD.dtype))
        normed_TD = self._normed(self.x_TD).to(self.x_TD.dtype)
        self._check(run(self.x_TD, None, self.norm, self.experts, *settings), self.x_TD)
        self._check(run(normed_TD, None, None, self.experts, *settings), normed_TD, normed_TD)

    def parts(self, ranks):
        """The same tokens for each of several ranks, which holds some of the experts and a part of the shared expert's width."""
        held, (every_gate_up, every_down) = self.experts.num_experts // ranks, self.experts[1:3]
        for first in range(0, held * ranks, held):
            shared = self.experts.shared
            if shared is not None:
                width = shared.down_DI.shape[1] // ranks
                columns = slice(first // held * width, (first // held + 1) * width)
                gate_up = torch.cat([half[columns] for half in shared.gate_up_XD.chunk(2)])
                shared = SharedExpert(gate_up, shared.down_DI[:, columns].contiguous(), shared.gate_1D)
            part = copy(self)
            # Copies: beside them are no weights of other experts.
            part.experts = self.experts._replace(
                gate_up_EXD=every_gate_up[first : first + held].clone(),
                down_EDI=every_down[first : first + held].clone(),
                shared=shared,
                first=first,
            )
            yield part

    def check_parts(self, ranks, run, *settings):
        """Each part alone, and that they add up to the whole."""
        given, sum_TD = (self.x_TD, self.delta_TD, self.norm), self.x_TD + self.delta_TD
        total_TD = torch.zeros_like(sum_TD, dtype=torch.float64)
        for part in self.parts(ranks):
            got = run(*given, part.experts, *settings)
            part._check(got, sum_TD)
            total_TD += got[0]
        whole_TD, _ = run(*given, self.experts, *settings)
        error = (total_TD - whole_TD).abs().max() / whole_TD.abs().max()
        assert error < TOLERANCE[whole_TD.dtype]

    def _close(self, x_TD, dtype):
        """Where rounding the logits may exchange two experts that are as good as equal, which is not an error."""
        best_TE = (x_TD.to(dtype).double() @ self.experts.router_ED.double().T).sort(-1, descending=True).values
        count = best_TE.shape[1]
        gap_T = best_TE[:, self.experts.top_k - 1] - best_TE[:, min(self.experts.top_k, count - 1)]
        return (gap_T < CLOSE[dtype]) & (self.experts.top_k < count)

    def _normed(self, x_TD):
        x_TD = x_TD.double()
        return x_TD * (x_TD.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt() * self.norm.weight_D.double()

    def _check(self, got, sum_TD, normed_TD=None):
        y_TD, got_sum_TD = got
        assert torch.equal(got_sum_TD, sum_TD)
        assert y_TD.dtype == sum_TD.dtype
        dtype, experts = sum_TD.dtype, self.experts
        x_TD = (self._normed(sum_TD).to(dtype) if normed_TD is None else normed_TD).double()
        weight_TE = torch.zeros_like(logits_TE := x_TD @ experts.router_ED.double().T)
        share_TK, expert_TK = logits_TE.softmax(-1).topk(experts.top_k)
        share_TK = share_TK / share_TK.sum(-1, keepdim=True) if experts.norm_topk else share_TK
        weight_TE.scatter_(1, expert_TK, share_TK)
        expected = sum(
            weight_TE[:, expert, None] * gated(x_TD, gate_up.double(), down.double())
            for expert, (gate_up, down) in enumerate(
                zip(experts.gate_up_EXD, experts.down_EDI, strict=True), experts.first
            )
        )
        if experts.shared is not None:
            gate_up, down, gate = (t.double() for t in experts.shared)
            expected = expected + (x_TD @ gate.T).sigmoid() * gated(x_TD, gate_up, down)
        # No token may have chosen an expert that is held.
        error_T = (y_TD.double() - expected).abs().amax(-1) / (expected.abs().max() if expected.any() else 1.0)
        close = self._close(x_TD, dtype)
        assert close.double().mean() < 0.75
        assert (error_T[~close] < TOLERANCE[dtype]).all()


def gated(x_TD, gate_up_XD, down_DI):
    gate, up = (x_TD @ gate_up_XD.T).chunk(2, -1)
    return (gate * gate.sigmoid() * up) @ down_DI.T


MIXTURES = [
    {"tokens": 1, "width": 16, "intermediate": 8, "experts": 4, "top_k": 2},
    {"tokens": 3, "width": 20, "intermediate": 13, "experts": 6, "top_k": 3, "norm_topk": False, "shared": 30},
    {"tokens": 2, "width": 32, "intermediate": 24, "experts": 1, "top_k": 1},
    {"tokens": 2, "width": 17, "intermediate": 8, "experts": 3, "top_k": 3, "shared": 16},
]


@pytest.mark.parametrize("mixture", few_of(1, MIXTURES[::-1], SLOW))
def test_mixtures_of_few_rows(mixture):
    Mixture(**mixture).check(mix_few, few())


@pytest.mark.parametrize("mixture", MIXTURES)
def test_mixtures_of_grouped_rows(mixture):
    Mixture(**mixture).check(mix_grouped, grouped())


@pytest.fixture
def poisoned(monkeypatch):
    """Unwritten memory is NaN: entries that are left out must not be read."""

    def filled(make):
        def made(*arguments, **options):
            tensor = make(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch.Tensor, "new_empty", filled(torch.Tensor.new_empty))


PARTS = [
    ({"tokens": 1, "width": 16, "intermediate": 8, "experts": 4, "top_k": 2}, 2),
    ({"tokens": 3, "width": 20, "intermediate": 13, "experts": 6, "top_k": 3, "norm_topk": False, "shared": 30}, 3),
    ({"tokens": 2, "width": 17, "intermediate": 8, "experts": 8, "top_k": 5, "shared": 16}, 4),
    ({"tokens": 2, "width": 16, "intermediate": 8, "experts": 4, "top_k": 1}, 4),
]
"""Mixtures, and the number of ranks that their experts are divided among."""


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("mixture", "ranks"), few_of(1, PARTS[::-1], SLOW))
def test_parts_of_few_rows(mixture, ranks):
    Mixture(**mixture).check_parts(ranks, mix_few, few())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("more", [0, 20])
@pytest.mark.parametrize(("mixture", "ranks"), few_of(1, PARTS[1:] + PARTS[:1], SLOW))
def test_parts_of_grouped_rows(mixture, ranks, more):
    """One program groups up to 16 tokens, more are counted first."""
    tokens = mixture["tokens"] + more
    Mixture(**mixture | {"tokens": tokens}).check_parts(ranks, mix_grouped, grouped(left=more > 0))


@pytest.mark.parametrize("intermediate", [8, 13])
@pytest.mark.parametrize("tokens", [1, 19])
@pytest.mark.parametrize(("mixture", "ranks"), PARTS)
def test_parts_in_plain_torch(mixture, ranks, tokens, intermediate, monkeypatch):
    """Of 13 float32, rows are not a multiple of 16 bytes, which `grouped_mm` does not take. It leaves rows that belong to no expert
    as they were."""
    real = torch.nn.functional.grouped_mm

    def multiplied(x_SD, weights, offs):
        beyond_S = torch.arange(len(x_SD), device=x_SD.device) >= offs[-1]
        return real(x_SD, weights, offs=offs).masked_fill(beyond_S[:, None], float("nan"))

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", multiplied)
    sizes = mixture | {"tokens": tokens, "intermediate": intermediate}
    Mixture(**sizes).check_parts(ranks, reference.mix_experts)


@pytest.mark.parametrize("tokens", [3, 30])
def test_pairs_of_other_experts_have_no_block(tokens):
    """Launches have blocks for the held experts only, and no block is filled for others."""
    experts, top_k, block_m = 12, 5, 16
    logits_TE = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    weight_TK, expert_TK, _ = route_and_group(logits_TE, top_k, True, block_m)
    for first, held in ((0, 3), (3, 3), (8, 4), (11, 1)):
        weights, chosen, groups = route_and_group(logits_TE, top_k, True, block_m, first, held)
        assert torch.equal(weights, weight_TK)
        assert torch.equal(chosen, expert_TK)
        local_S = expert_TK.cpu().flatten() - first
        order = local_S.argsort(stable=True)
        order = order[(local_S[order] >= 0) & (local_S[order] < held)]
        assert torch.equal(groups.pair_S.cpu().long()[: len(order)], order)
        blocks = []
        for expert in range(held):
            of = (local_S[order] == expert).nonzero().flatten().tolist()
            blocks += [(expert, start, of[-1] + 1) for start in of[::block_m]]
        block_3B = groups.block_3B.cpu()
        assert [tuple(b) for b in block_3B.T[: len(blocks)].tolist()] == blocks
        assert (block_3B[0, len(blocks) :] == -1).all()
        most = tokens * min(top_k, held)
        assert groups.pair_S.shape == (most,)
        assert block_3B.shape[1] == min(most, held) + most // block_m


# Faults that the comparison of parts must detect.


def normalized_over_held_experts(x_TD, delta_TD, norm, experts):
    logits_ED = experts.router_ED[experts.first : experts.first + experts.num_held]
    few_chosen = min(experts.top_k, experts.num_held)
    return mix_grouped(
        x_TD, delta_TD, norm, experts._replace(router_ED=logits_ED, first=0, top_k=few_chosen), grouped()
    )


def next_experts(x_TD, delta_TD, norm, experts):
    return mix_grouped(
        x_TD, delta_TD, norm, experts._replace(first=(experts.first + 1) % experts.num_experts), grouped()
    )


def first_experts(x_TD, delta_TD, norm, experts):
    return mix_few(x_TD, delta_TD, norm, experts._replace(first=0), few())


@pytest.mark.parametrize("fault", [normalized_over_held_experts, next_experts, first_experts])
def test_a_planted_fault_is_seen(fault):
    with pytest.raises(AssertionError):
        Mixture(5, 16, 8, 6, 3, seed=1).check_parts(2, fault)


@pytest.mark.parametrize("tokens", few_of(1, [5, 1, 4], SLOW))
def test_mixtures_by_the_default_of_an_unmeasured_shape(tokens):
    Mixture(tokens, 16, 8, 4, 2, shared=12).check(mix_experts)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("tokens", "width", "intermediate", "experts", "top_k"),
    [(1, 16, 8, 4, 2), (21, 20, 13, 6, 3), (40, 32, 24, 2, 1), (7, 33, 17, 3, 3)],
)
def test_grouped_rows_give_the_exact_mixture(left, tokens, width, intermediate, experts, top_k):
    Case(tokens, width, intermediate, experts, top_k).check(grouped(left=left))


def test_blocks_that_are_not_half_full():
    routing = torch.tensor([[0]] * 18 + [[1]] * 30 + [[2]] * 3)
    Case(51, 16, 8, 4, 1, routing=routing).check(grouped(block_m=32, halves=True))


@pytest.mark.parametrize("left", [False, True])
def test_weights_through_the_copy_engine(left):
    Case(21, 24, 12, 6, 3).check(grouped(left=left, tma=True))


def test_one_expert_takes_every_token():
    Case(19, 16, 8, 5, 1, routing=torch.full((19, 1), 3)).check(grouped())


def test_idle_experts_are_not_read():
    case = Case(9, 16, 8, 6, 2, routing=torch.tensor([[1, 4]] * 9))
    expected = case.expected()
    for idle in (0, 2, 3, 5):
        case.gate_up_EXD[idle] = float("nan")
        case.down_EDI[idle] = float("nan")
    for settings in (grouped(), grouped(left=True)):
        torch.testing.assert_close(case.run(settings).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pairs", "experts", "block_m"),
    [((7, 3), 5, 16), ((60, 2), 3, 16), ((1, 1), 8, 16), ((1, 6), 6, 32), ((70, 2), 4, 64), ((130, 1), 2, 64)],
)
def test_pairs_are_grouped_by_expert(pairs, experts, block_m):
    logits_TE = torch.randn(pairs[0], experts, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    weight_TK, expert_TK, groups = route_and_group(logits_TE, pairs[1], True, block_m)
    check_routing(logits_TE, weight_TK, expert_TK, True)
    expert_TK = expert_TK.cpu()
    order = expert_TK.flatten().argsort(stable=True)
    assert torch.equal(groups.pair_S.cpu().long(), order)
    blocks = []
    for expert in range(experts):
        of = (expert_TK.flatten()[order] == expert).nonzero().flatten().tolist()
        blocks += [(expert, start, of[-1] + 1) for start in of[::block_m]]
    block_3B = groups.block_3B.cpu()
    assert [tuple(b) for b in block_3B.T[: len(blocks)].tolist()] == blocks
    assert (block_3B[0, len(blocks) :] == -1).all()


@pytest.mark.parametrize("norm_topk", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(3, 8, 2), (2, 6, 6), (1, 1, 1), (4, 13, 5)])
def test_tokens_are_routed_by_their_logits(norm_topk, tokens, experts, top_k):
    logits_TE = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(2)) * 3
    weight_TK, expert_TK, _ = route_and_group(logits_TE.to(DEVICE), top_k, norm_topk, 16)
    check_routing(logits_TE, weight_TK, expert_TK, norm_topk)


def check_routing(logits_TE, weight_TK, expert_TK, norm_topk):
    top_k = expert_TK.shape[1]
    expected, order = logits_TE.cpu().double().softmax(-1).sort(-1, descending=True)
    expected = expected[:, :top_k]
    if norm_topk:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(expert_TK.cpu().long(), order[:, :top_k])
    assert weight_TK.dtype == torch.float32
    torch.testing.assert_close(weight_TK.cpu().double(), expected, rtol=1e-5, atol=1e-7)


def test_ties_go_to_the_lowest_expert():
    logits_TE = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]])
    assert route_and_group(logits_TE.to(DEVICE), 4, True, 16)[1].tolist() == [[1, 2, 4, 0]]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_experts_of_meaningless_logits_exist():
    logits_TE = torch.full((2, 5), float("nan"))
    logits_TE[1, 1:] = float("-inf")
    _, expert_TK, _ = route_and_group(logits_TE.to(DEVICE), 3, True, 16)
    assert ((expert_TK >= 0) & (expert_TK < 5)).all()


SHARED_DTYPES = [
    torch.float32,
    *(pytest.param(half, marks=pytest.mark.gpu) for half in (torch.bfloat16, torch.float16)),
]


@pytest.mark.parametrize("dtype", SHARED_DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(3, 16), (1, 1), (5, 300)])
def test_adding_the_shared_expert(tokens, width, dtype):
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(DEVICE, dtype)  # noqa: E731
    y_TKD, shared_TD, x_TD, gate_1D = draw(tokens, 3, width), draw(tokens, width), draw(tokens, width), draw(1, width)
    weight_TK = torch.rand(tokens, 3, generator=generator).to(DEVICE)
    given = [tensor.double() for tensor in (y_TKD, weight_TK, shared_TD, x_TD, gate_1D)]
    out_TD = combine(y_TKD.flatten(0, 1), weight_TK, False, (shared_TD, x_TD, gate_1D))
    y_TKD, weight_TK, shared_TD, x_TD, gate_1D = given
    expected = (y_TKD * weight_TK[..., None]).sum(1) + (x_TD @ gate_1D.T).sigmoid() * shared_TD
    assert out_TD.dtype == dtype
    assert (out_TD.double() - expected).abs().max() / expected.abs().max() < TOLERANCE[dtype]


# As the shapes that are served, but small: tiles fill their blocks.
SERVED = {"width": 1024, "intermediate": 384, "experts": 128, "top_k": 6, "dtype": torch.bfloat16}


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [0, 768])
def test_few_rows_at_served_tiles(shared):
    mixture = Mixture(2, shared=shared, **SERVED)
    mixture.check(mix_few, few(gate_i=2, gate_d=1024, down_d=2, down_i=128, warps=2))
    mixture.check(mix_few, few(gate_i=4, gate_d=512, down_d=1, down_i=512, warps=1))


# One program groups up to 16 tokens, more are counted first.
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "tile"),
    [
        (8, {"n": 32, "k": 128, "left": True, "stages": 3, "overlap": True}),
        (40, {"n": 32, "k": 128, "left": True, "stages": 3, "tma": True, "overlap": True}),
        (70, {"block_m": 64, "n": 64, "k": 64, "stages": 3}),
        (150, {"block_m": 128, "n": 64, "k": 64, "stages": 3, "tma": True, "halves": True, "warps": 8}),
    ],
)
def test_grouped_rows_at_served_tiles(tokens, tile):
    Case(tokens, **SERVED).check(grouped(**tile))


@pytest.mark.gpu
def test_mixtures_of_grouped_rows_at_served_tiles():
    """So few tokens that none of its linear maps is one of cuBLAS's, which racecheck does not get through."""
    Mixture(24, shared=768, **SERVED).check(mix_experts)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(9))
def test_mixtures_of_random_shapes(seed):
    rng = random.Random(seed)
    dtype = list(TOLERANCE)[seed % 3]
    experts = rng.choice([1, 3, 8, 17, 64, 128])
    top_k = rng.randint(1, min(8, experts))
    width, intermediate = rng.choice([64, 129, 256, 520, 1024]), rng.choice([8, 33, 96, 384])
    tma = width % 8 == 0 and intermediate % 8 == 0 and dtype != torch.float32
    tiles = [
        {"block_m": rng.choice([16, 32, 64]), "n": rng.choice([32, 64]), "k": 32, "left": left, "tma": tma and overlap}
        | {"overlap": overlap}
        for left in (False, True)
        for overlap in (False, True)
    ]
    tiles.append({"block_m": 128, "n": 64, "k": 32, "halves": True, "tma": tma, "warps": 8})
    for tokens in (1, 2, rng.randint(3, 16), rng.randint(17, 90), rng.randint(91, 400)):
        case = Case(tokens, width, intermediate, experts, top_k, seed, dtype)
        for tile in tiles:
            case.check(grouped(**tile))
        mixture = Mixture(tokens, width, intermediate, experts, top_k, rng.choice([0, 100]), True, seed, dtype)
        mixture.check(mix_experts)
        if tokens <= 16:
            mixture.check(mix_few, few(8, 256, 2, 128))
        for ranks in (2, 4):
            if experts % ranks == 0:
                check_random_parts(mixture, ranks, tiles)


def check_random_parts(mixture, ranks, tiles):
    for tile in tiles:
        mixture.check_parts(ranks, mix_grouped, grouped(**tile))
    mixture.check_parts(ranks, mix_experts)
    if len(mixture.x_TD) <= 16:
        mixture.check_parts(ranks, mix_few, few(8, 256, 2, 128))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 16, 32, 33, 64, 128, 256, 512, 1000, 2048])
@pytest.mark.parametrize(("width", "intermediate", "top_k"), [(2048, 768, 8), (1024, 384, 6)])
def test_mixtures_of_released_shapes(tokens, width, intermediate, top_k):
    case = Case(tokens, width, intermediate, 128, top_k, dtype=torch.bfloat16)
    case.check(default_settings(max(tokens, 5), 128, top_k, width, intermediate, torch.bfloat16))
    del case
    mixture = Mixture(tokens, width, intermediate, 128, top_k, 768 if width == 1024 else 0, dtype=torch.bfloat16)
    mixture.check(mix_experts)
    mixture.check_parts(2, mix_experts)
    if tokens <= 16:
        mixture.check(mix_few, few(2, width, 1, 1024))
        mixture.check_parts(2, mix_few, few(2, width, 1, 1024))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 40, 300])
def test_the_same_bits_every_time(tokens):
    mixture = Mixture(tokens, 512, 256, 32, 4, 384, dtype=torch.bfloat16)
    given = (mixture.x_TD, mixture.delta_TD, mixture.norm, mixture.experts)
    first, _ = mix_experts(*given)
    assert all(torch.equal(mix_experts(*given)[0], first) for _ in range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 40, 300])
def test_captured_mixtures_follow_the_tokens_of_each_replay(tokens, overlap, ranks):
    """The whole, and a part that more or fewer tokens choose at every replay."""
    mixture = list(Mixture(tokens, 256, 128, 32, 4, 128, dtype=torch.bfloat16).parts(ranks))[-1]
    given = (mixture.x_TD, mixture.delta_TD, mixture.norm, mixture.experts)

    def step():
        few_TD, _ = mix_few(*given, few(8, 256, 2, 128))
        grouped_TD, _ = mix_grouped(*given, grouped(n=32, k=64, left=True, stages=3, tma=True, overlap=overlap))
        return few_TD, grouped_TD

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(10):
        mixture.x_TD.copy_(torch.randn_like(mixture.x_TD))
        graph.replay()
        assert all(torch.equal(got, expected) for got, expected in zip(captured, step(), strict=True))
