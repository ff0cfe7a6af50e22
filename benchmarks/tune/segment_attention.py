"""Measures launch settings of attention within segments, on batches of the towers' sizes.

    python benchmarks/tune/segment_attention.py

Every candidate is checked against torch, then runs in one CUDA graph over layers of their own queries, keys and values. Times are
medians per layer, beside those of torch: segment by segment, and behind a mask. The best in all is for `choose_settings` in
`omni_encoder/kernels/segment_attention/kernel.py`; there is no table.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import beside  # noqa: F401 - for `bench`
import torch
from agreement import distance, refuse_wrong
from compile_ahead import compile_ahead
from torch import Tensor
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, positive_int
from bench.replay import replayed_seconds
from omni_encoder.kernels.segment_attention import reference
from omni_encoder.kernels.segment_attention.kernel import (
    SegmentSettings,
    attend_segments,
    choose_settings,
    head_parts,
)
from omni_encoder.segments import segment_bounds

COMPUTE = 790e12
LAYERS = 9
HEADS = {"vision": (16, 72), "audio": (20, 64)}
WINDOW = 104
CASES = {
    "vision, 256 embeddings": ("vision", (1024,), 1024),
    "vision, 576 of 768": ("vision", (2304,), 3072),
    "vision, 1024 of 1040": ("vision", (4096,), 4160),
    "vision, 5 pictures": ("vision", (1024, 576, 1400, 64, 700), 4096),
    "audio, 65 of 128": ("audio", (65,), 130),
    "audio, 390 of 512": ("audio", (*(WINDOW,) * 3, 78), 520),
    "audio, 1027 of 1040": ("audio", (*(WINDOW,) * 9, 91), 1040),
}


@dataclass(frozen=True, slots=True)
class SegmentLayer:
    """Shape legend: as of the kernel."""

    q_SHW: Tensor
    k_SHW: Tensor
    v_SHW: Tensor

    @classmethod
    def draw(cls, tower: str, positions: int, device: str) -> "SegmentLayer":
        """Values are a part of one product's outputs, queries and keys were turned since."""
        packed = torch.randn(positions, 3, *HEADS[tower], dtype=torch.bfloat16, device=device)
        q, k, v = packed.unbind(1)
        return cls(q.contiguous(), k.contiguous(), v)


class SegmentCase:
    def __init__(self, tower: str, lengths: Sequence[int], positions: int) -> None:
        self.lengths, self.scale = tuple(lengths), HEADS[tower][1] ** -0.5
        self.layers = [SegmentLayer.draw(tower, positions, "cuda") for _ in range(LAYERS)]
        bounds = torch.zeros(positions, 2, dtype=torch.int32)
        bounds[: sum(lengths)] = torch.from_numpy(segment_bounds(lengths))
        self.bounds_S2 = bounds.cuda()
        heads, head_dim = HEADS[tower]
        self.floor = 4 * sum(length**2 for length in lengths) * heads * head_dim / COMPUTE

    def attend(self, settings: SegmentSettings, layer: SegmentLayer) -> Tensor:
        return attend_segments(layer.q_SHW, layer.k_SHW, layer.v_SHW, self.bounds_S2, self.scale, settings)

    def by_torch(self, lengths: tuple[int, ...] | None, layer: SegmentLayer) -> Tensor:
        """lengths: None attends behind a mask."""
        used = len(layer.q_SHW) if lengths is None else sum(lengths)
        q, k, v = (tensor[:used] for tensor in (layer.q_SHW, layer.k_SHW, layer.v_SHW))
        return reference.attend_segments(q, k, v, self.bounds_S2, lengths, self.scale)

    def seconds(self, settings: SegmentSettings) -> float:
        """Seconds of one layer; inf where the settings do not fit the device."""
        try:
            ours = self.attend(settings, self.layers[-1])
        except (TritonError, RuntimeError) as error:
            print(f"    refused: {settings}: {str(error)[:100]}")
            return float("inf")
        expected = self.by_torch(self.lengths, self.layers[-1])
        refuse_wrong(distance(ours[: len(expected)], expected), settings)
        return replayed_seconds([partial(self.attend, settings, layer) for layer in self.layers], tidy=False)

    def torch_seconds(self, lengths: tuple[int, ...] | None) -> float:
        return replayed_seconds([partial(self.by_torch, lengths, layer) for layer in self.layers])


def candidates(head_dim: int) -> list[SegmentSettings]:
    tiles = [(64, 4), (128, 8), (128, 4)]
    splits = (True, False) if head_parts(head_dim, True)[1] else (True,)
    return [
        SegmentSettings(block_m, block_n, num_warps, num_stages, split)
        for (block_m, num_warps), block_n, num_stages, split in product(tiles, (32, 64, 128), (2, 3), splits)
    ]


def compile_candidates() -> None:
    bounds = torch.zeros(2, 2, dtype=torch.int32)
    launches = []
    for tower, (_, head_dim) in HEADS.items():
        layer = SegmentLayer.draw(tower, 2, "cpu")  # of one position, any stride is dense
        qkv = (layer.q_SHW, layer.k_SHW, layer.v_SHW)
        launches += [partial(attend_segments, *qkv, bounds, 1.0, settings) for settings in candidates(head_dim)]
    compile_ahead(launches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--best", type=positive_int, default=5, help="how many of each case to print")
    arguments = parser.parse_args()
    need_cuda()
    compile_candidates()
    chosen = choose_settings(torch.bfloat16)
    scores: dict[str, dict[SegmentSettings, float]] = {tower: {} for tower in HEADS}
    for name, (tower, lengths, positions) in CASES.items():
        case = SegmentCase(tower, lengths, positions)
        times = {settings: case.seconds(settings) for settings in candidates(HEADS[tower][1])}
        best = min(times.values())
        for settings, seconds in times.items():
            scores[tower][settings] = scores[tower].get(settings, 0.0) + math.log(seconds / best)
        split, masked = case.torch_seconds(case.lengths), case.torch_seconds(None)
        print(
            f"{name}: chosen {times[chosen] * 1e6:.1f} us, best {best * 1e6:.1f} us, floor {case.floor * 1e6:.1f} us; "
            f"torch by segments {split * 1e6:.1f} us, behind a mask {masked * 1e6:.1f} us"
        )
        for settings, seconds in sorted(times.items(), key=lambda pair: pair[1])[: arguments.best]:
            print(f"    {seconds * 1e6:8.1f} us  {case.floor / seconds:4.0%}  {settings}")
    for tower, sums in scores.items():
        count = sum(case[0] == tower for case in CASES.values())
        for settings, total in sorted(sums.items(), key=lambda pair: pair[1])[: arguments.best]:
            print(f"{tower}, all: {math.exp(total / count):.3f} of the best  {settings}")


if __name__ == "__main__":
    main()
