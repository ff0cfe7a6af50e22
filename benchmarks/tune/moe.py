"""Finds tiles for mixtures of experts on this GPU, checks them against torch, and writes what `omni_ar.kernels.tuning` ships.

    python benchmarks/tune/moe.py --shape thinker --shape talker --out stages/omni_ar/kernels/tuning/nvidia_h200/moe.json

Routing is nearly uniform: tokens and router are random. Every launch has its own tokens, and launches take turns with copies of the
weights that together are more than L2 holds. Both products are timed alone, launches in a graph; then all of it together, from the
residual stream to what the experts add to it: a layer but for its attention. What was best is checked before that.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

import beside  # noqa: F401 - for `bench`
import msgspec
import torch
from agreement import refuse_wrong
from compile_ahead import compile_ahead
from msgspec.structs import replace
from torch import Tensor
from triton.runtime.errors import OutOfResources

from bench.arguments import need_cuda, output_file, positive_int
from bench.replay import H200_BANDWIDTH, replayed_seconds
from omni.device.kernel_choice import plain_torch
from omni_ar.kernels.linear import linear
from omni_ar.kernels.moe import reference
from omni_ar.kernels.moe.combine import combine
from omni_ar.kernels.moe.experts import Experts, Norm, SharedExpert
from omni_ar.kernels.moe.few import mix_few, multiply_down_few, multiply_gate_up_few
from omni_ar.kernels.moe.grouped import mix_grouped, multiply_down, multiply_gate_up
from omni_ar.kernels.moe.grouping import Groups, route_and_group
from omni_ar.kernels.moe.router import Routed, route_few
from omni_ar.kernels.moe.settings import (
    FewProduct,
    FewSettings,
    GroupedProduct,
    GroupedSettings,
    MoeSettings,
    shape_key,
)
from omni_ar.kernels.norm import add_rms_norm

P = TypeVar("P", FewProduct, GroupedProduct)

LAUNCHES, REPLAYS, COPIES = 8, 7, 2
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048)
FEW_UP_TO, GROUPED_FROM = 16, 4


class MoeShape(NamedTuple):
    experts: int
    top_k: int
    width: int
    intermediate: int
    shared: int = 0

    @property
    def expert_bytes(self) -> int:
        return 3 * self.width * self.intermediate * 2


SHAPES = {
    "thinker": MoeShape(128, 8, 2048, 768),
    "thinker-half": MoeShape(128, 8, 2048, 384),  # of a rank with tensor_parallel=2
    "talker": MoeShape(128, 6, 1024, 384, 768),
}


def few_candidates(shape: MoeShape) -> tuple[list[FewProduct], list[FewProduct]]:
    """Candidates of settings, for both products."""
    whole, row = (1 << (n - 1).bit_length() for n in (shape.width, shape.intermediate))
    gate = [(1, whole, 1), (1, whole, 2), (2, whole, 2), (2, whole, 4), (4, whole, 4), (8, whole, 8), (4, 512, 1)]
    part = shape.intermediate & -shape.intermediate  # the power of two in it: no lane idle
    down = [(row, 1, 1), (row, 1, 2), (row, 1, 4), (row, 2, 2), (row, 2, 4), (part, 1, 1), (part, 2, 2), (part, 4, 4)]
    gates, downs = ([FewProduct(i=i, d=d, warps=warps) for i, d, warps in tiles] for tiles in (gate, down))
    return gates, downs


# n (of each of two matrices for gate), k, stages, warps, whether weights are the left operand, and come by the copy engine;
# whether half-full blocks take half a tile (0 where left out).
GROUPED: dict[int, tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    16: (
        [
            (32, 128, 3, 4, 1, 0), (32, 128, 4, 4, 1, 0), (32, 256, 3, 4, 1, 0), (64, 64, 5, 4, 1, 0),
            (32, 128, 3, 4, 1, 1), (32, 128, 4, 4, 1, 1), (32, 256, 3, 4, 1, 1), (64, 128, 3, 4, 1, 1), (32, 64, 7, 4, 1, 1),
            (64, 64, 5, 4, 1, 1),
            (16, 128, 4, 4, 0, 0), (32, 128, 3, 4, 0, 0), (32, 128, 4, 4, 0, 0), (32, 256, 3, 8, 0, 0), (32, 128, 4, 4, 0, 1),
        ],
        [
            (64, 128, 3, 4, 1, 0), (64, 128, 4, 4, 1, 0), (64, 256, 3, 4, 1, 0),
            (64, 128, 3, 4, 1, 1), (64, 128, 4, 4, 1, 1), (64, 256, 3, 4, 1, 1), (128, 128, 3, 4, 1, 1), (128, 64, 5, 4, 1, 1),
            (32, 128, 4, 4, 0, 0), (32, 256, 3, 4, 0, 0), (64, 128, 4, 4, 0, 0), (64, 128, 4, 4, 0, 1),
        ],
    ),
    32: (
        [
            (32, 128, 4, 4, 1, 0), (64, 64, 4, 4, 1, 0), (32, 128, 4, 4, 1, 1), (64, 128, 3, 4, 1, 1), (64, 64, 4, 4, 1, 1),
            (32, 128, 3, 4, 0, 0),
        ],
        [
            (64, 128, 4, 4, 1, 0), (128, 64, 4, 4, 1, 0), (64, 128, 4, 4, 1, 1), (128, 64, 4, 4, 1, 1), (128, 128, 3, 8, 1, 1),
            (64, 128, 3, 4, 0, 0),
        ],
    ),
    64: (
        [
            (32, 128, 3, 4, 1, 1), (64, 64, 4, 4, 1, 1), (64, 64, 4, 4, 0, 0), (64, 64, 4, 4, 0, 1), (64, 64, 3, 4, 0, 1),
            (128, 64, 3, 8, 0, 1),
        ],
        [
            (64, 128, 3, 4, 1, 1), (128, 64, 4, 4, 1, 1), (128, 64, 4, 4, 0, 0), (128, 64, 4, 4, 0, 1), (128, 64, 3, 4, 0, 1),
            (256, 64, 3, 8, 0, 1),
        ],
    ),
    128: (
        [
            (64, 64, 3, 8, 0, 1), (128, 64, 3, 8, 0, 1), (128, 64, 4, 8, 0, 1), (128, 64, 4, 8, 0, 1, 1), (64, 64, 3, 8, 0, 1, 1),
            (64, 64, 4, 8, 0, 1, 1), (128, 64, 3, 8, 0, 1, 1), (64, 128, 2, 8, 0, 1, 1), (64, 64, 3, 4, 0, 1, 1),
        ],
        [
            (128, 64, 3, 8, 0, 1), (256, 64, 3, 8, 0, 1), (256, 64, 4, 8, 0, 1), (256, 64, 4, 8, 0, 1, 1), (128, 64, 3, 8, 0, 1, 1),
            (128, 64, 4, 8, 0, 1, 1), (256, 64, 3, 8, 0, 1, 1), (128, 128, 2, 8, 0, 1, 1), (128, 64, 3, 4, 0, 1, 1),
        ],
    ),
}  # fmt: skip


def grouped_candidates(block_m: int) -> tuple[list[GroupedProduct], list[GroupedProduct]]:
    """Candidates of settings, for both products."""
    gates, downs = (
        [
            GroupedProduct(
                n=n, k=k, stages=stages, warps=warps, left=bool(left), tma=bool(tma), halves=bool(halves and halves[0])
            )
            for n, k, stages, warps, left, tma, *halves in tiles
        ]
        for tiles in GROUPED[block_m]
    )
    return gates, downs


def block_sizes(rows_per_expert: float) -> list[int]:
    """Blocks that hold all rows of nearly every expert, while that is cheap."""
    for limit, sizes in ((6, [16]), (12, [16, 32]), (24, [32, 64]), (48, [32, 64]), (float("inf"), [64, 128])):
        if rows_per_expert <= limit:
            return sizes
    raise ValueError(rows_per_expert)


class LayerBench:
    """One layer's weights, several times, and routings and inputs of one number of tokens."""

    def __init__(self, shape: MoeShape) -> None:
        self.shape = shape
        self.experts = [self._draw_experts() for _ in range(COPIES)]
        self.norm = Norm(torch.ones(shape.width, device="cuda", dtype=torch.bfloat16), 1e-6)

    def _draw_experts(self) -> Experts:
        shape = self.shape
        shared = None
        if shape.shared:
            gate_up, down = random(2 * shape.shared, shape.width), random(shape.width, shape.shared)
            shared = SharedExpert(gate_up, down, random(1, shape.width))
        weights = (
            random(shape.experts, shape.width),
            random(shape.experts, 2 * shape.intermediate, shape.width),
            random(shape.experts, shape.width, shape.intermediate),
        )
        return Experts(*weights, shape.top_k, True, shared)

    def draw(self, tokens: int) -> None:
        shape = self.shape
        self.x, self.delta = ([random(tokens, shape.width) for _ in range(LAUNCHES)] for _ in range(2))
        self.routed = [route_few(*self.given(i)) for i in range(LAUNCHES)]
        chosen = [routed.logits_TN[:, : shape.experts].topk(shape.top_k).indices for routed in self.routed]
        self.distinct = statistics.mean(expert.unique().numel() for expert in chosen)
        slots = shape.top_k + -(-shape.shared // shape.intermediate)
        self.hidden = random(tokens * slots, shape.intermediate)
        self.y = random(tokens * shape.top_k, shape.width)
        self.weight = torch.rand(tokens, shape.top_k, device="cuda")

    def given(self, i: int) -> tuple[Tensor, Tensor, Norm, Experts]:
        return self.x[i], self.delta[i], self.norm, self.experts[i % COPIES]

    def run(self, settings: MoeSettings, i: int) -> Tensor:
        if isinstance(settings, FewSettings):
            return mix_few(*self.given(i), settings)[0]
        return mix_grouped(*self.given(i), settings)[0]

    def group(self, i: int, block_m: int) -> Groups:
        shape = self.shape
        return route_and_group(self.routed[i].logits_TN[:, : shape.experts], shape.top_k, True, block_m)[2]

    def time(self, launch: Callable[[int], object]) -> float:
        """Microseconds of one launch, in a graph of several."""
        return 1e6 * replayed_seconds([partial(launch, i) for i in range(LAUNCHES)], replays=REPLAYS)

    def best(self, what: str, candidates: Iterable[P], launch: Callable[[P, int], object]) -> P:
        results = []
        for settings in candidates:
            try:
                results.append((self.time(partial(launch, settings)), settings))
            except (OutOfResources, RuntimeError) as error:  # of shared memory; of the compiler
                print(f"    {what} {shown(settings)}: {error}")
        results.sort(key=lambda result: result[0])
        some = ", ".join(f"{shown(settings)} {time:.1f}" for time, settings in results[:4])
        print(f"    {what}: {some} ... {results[-1][0]:.1f} us")
        return results[0][1]


def shown(settings: msgspec.Struct) -> str:
    return str(msgspec.to_builtins(settings)).replace("'", "")


def random(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16) / math.sqrt(size[-1])


def tune_few(bench: LayerBench) -> FewSettings:
    gates, downs = few_candidates(bench.shape)

    def gate(settings: FewProduct, i: int) -> Tensor:
        return multiply_gate_up_few(bench.routed[i], bench.experts[i % COPIES], settings)

    def down(settings: FewProduct, i: int) -> Tensor:
        return multiply_down_few(bench.hidden, bench.routed[i], bench.experts[i % COPIES], settings)

    return FewSettings(gate=bench.best("few gate", gates, gate), down=bench.best("few down", downs, down))


def tune_grouped(bench: LayerBench, block_m: int) -> GroupedSettings:
    groups = [bench.group(i, block_m) for i in range(LAUNCHES)]
    gates, downs = grouped_candidates(block_m)
    hidden = bench.hidden[: bench.y.shape[0]]

    def gate(settings: GroupedProduct, i: int) -> Tensor:
        given = (bench.x[i], bench.experts[i % COPIES].gate_up_EXD, groups[i], bench.shape.top_k)
        return multiply_gate_up(*given, settings)

    def down(settings: GroupedProduct, i: int) -> Tensor:
        return multiply_down(hidden, bench.experts[i % COPIES].down_EDI, groups[i], settings)

    return GroupedSettings(
        block_m=block_m,
        overlap=False,
        gate=bench.best(f"m{block_m} gate", gates, gate),
        down=bench.best(f"m{block_m} down", downs, down),
    )


def candidate_launches(shape: MoeShape) -> Iterator[Callable[[], object]]:
    """A launch of every candidate, alone and overlapping, on the CPU, with two experts in memory."""
    tokens, width, inner = 16, shape.width, shape.intermediate

    def zeros(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.bfloat16)

    shared = None
    if shape.shared:
        shared = SharedExpert(zeros(2 * shape.shared, width), zeros(width, shape.shared), zeros(1, width))
    gate_up, down = zeros(1, 2 * inner, width), zeros(1, width, inner)
    every = (zeros(shape.experts, width), gate_up, down.expand(shape.experts, -1, -1))
    experts = Experts(*every, shape.top_k, True, shared)
    x, hidden = zeros(tokens, width), zeros(tokens * shape.top_k, inner)
    routed = Routed(x, x, zeros(tokens, shape.experts + bool(shape.shared)))
    gates, downs = few_candidates(shape)
    yield from (partial(multiply_gate_up_few, routed, experts, c) for c in gates)
    yield from (partial(multiply_down_few, hidden, routed, experts, c) for c in downs)
    for block_m in GROUPED:
        groups = Groups(torch.zeros(tokens, dtype=torch.int32), torch.zeros(3, 8, dtype=torch.int32), block_m)
        wide, tall = grouped_candidates(block_m)
        for overlap in (False, True):
            yield from (partial(multiply_gate_up, x, gate_up, groups, shape.top_k, c, overlap) for c in wide)
            yield from (partial(multiply_down, hidden, down, groups, c, overlap) for c in tall)


def check(bench: LayerBench, settings: MoeSettings) -> float:
    """The relative error against torch, for inputs of a launch that was not the last to run."""
    with plain_torch():
        expected = reference.mix_experts(*bench.given(1))[0].float()
    difference = bench.run(settings, 1).float() - expected
    # A rounded logit may exchange two experts of some token, which is not an error, so the median token speaks for all.
    return refuse_wrong((difference.norm(dim=-1) / expected.norm(dim=-1)).median().item(), settings)


def tune(bench: LayerBench, tokens: int) -> tuple[MoeSettings, str]:
    shape = bench.shape
    bench.draw(tokens)
    print(f"  {tokens} tokens, {bench.distinct:.1f} distinct experts")
    found: list[MoeSettings] = [tune_few(bench)] if tokens <= FEW_UP_TO else []
    if tokens >= GROUPED_FROM:
        for size in block_sizes(tokens * shape.top_k / shape.experts):
            alone = tune_grouped(bench, size)
            # Whether a kernel comes while the one before drains shows only when they follow one another.
            found += [alone, replace(alone, overlap=True)]
    shared_bytes = 3 * shape.width * shape.shared * 2
    floor = (bench.distinct * shape.expert_bytes + shared_bytes) / H200_BANDWIDTH * 1e6
    timed = []
    for settings in found:
        error = check(bench, settings)
        timed.append((bench.time(partial(bench.run, settings)), settings))
        print(
            f"    all {timed[-1][0]:8.1f} us  {floor / timed[-1][0]:4.0%} of copy  error {error:.4f}  {shown(settings)}"
        )
    best, settings = min(timed, key=lambda result: result[0])
    router = bench.experts[0].router_ED
    others = {
        "few router": lambda i: route_few(*bench.given(i)),
        "norm": lambda i: add_rms_norm(bench.x[i], bench.delta[i], bench.norm.weight_D, 1e-6),
        "router": lambda i: linear(bench.x[i], router),
        "routing and grouping": lambda i: bench.group(i, 16),
        "combine": lambda i: combine(bench.y, bench.weight),
    }
    print("    " + ", ".join(f"{name} {bench.time(launch):.1f} us" for name, launch in others.items()))
    rate = tokens * (shape.top_k * shape.expert_bytes + shared_bytes) / best / 1e6
    summary = f"  {tokens:5d} tokens: {best:8.1f} us, floor {floor:7.1f} us, {floor / best:4.0%}, {rate:.0f} TFLOP/s"
    print(summary)
    return settings, f"{summary}  {shown(settings)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=positive_int, nargs="+", default=TOKENS)
    parser.add_argument("--out", type=output_file, required=True)
    options = parser.parse_args()
    need_cuda()
    compile_ahead([launch for name in options.shape for launch in candidate_launches(SHAPES[name])])
    torch.manual_seed(0)
    table = json.loads(options.out.read_text()) if options.out.exists() else {}
    summaries: list[str] = []
    for name in options.shape:
        shape = SHAPES[name]
        print(f"{name}: {shape}")
        bench = LayerBench(shape)
        sizes = table.setdefault(shape_key(*shape[:4], torch.bfloat16), {})
        summaries.append(name)
        for tokens in options.tokens:
            settings, summary = tune(bench, tokens)
            sizes[str(tokens)] = msgspec.to_builtins(settings)
            summaries.append(summary)
            options.out.write_text(json.dumps(table, indent=1) + "\n")
    print(*summaries, sep="\n")


if __name__ == "__main__":
    main()
