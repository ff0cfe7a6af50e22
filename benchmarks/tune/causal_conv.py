"""Measures tiles of the vocoder's convolutions, in the layers of Qwen3-Omni's decoder.

    python benchmarks/tune/causal_conv.py --rows 32 --frames 25

Every candidate is checked against torch, then replayed. The tiles that are good in all layers are for `choose_settings` in
`omni_vocoder/kernels/causal_conv/kernel.py`; there is no table. Both outputs are written, and dilation is 1. The floor is that of
the products alone.
"""

import argparse
from functools import partial
from itertools import product
from typing import NamedTuple

import beside  # noqa: F401 - for `bench`
import torch
from agreement import distance, refuse_wrong
from compile_ahead import compile_ahead
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, positive_int
from bench.replay import replayed_seconds
from omni_vocoder.kernels.causal_conv import Snake, reference
from omni_vocoder.kernels.causal_conv.kernel import ConvSettings, causal_conv, choose_settings

COMPUTE = 790e12
_MOST_SHARED = 227 * 2**10


class Layer(NamedTuple):
    """positions: of a frame. channels: of a sample, which a position becomes one or several of."""

    name: str
    taps: int
    inputs: int
    outputs: int
    channels: int
    positions: int
    adds: bool = False
    activated: bool = True


LEVELS = ((768, 32, 8), (384, 160, 5), (192, 640, 4), (96, 1920, 3))
"""Channels, positions of a frame, and the rate that leads to them."""
LAYERS = [
    Layer("inlet", 7, 1024, 1536, 1536, 4),
    *(Layer(f"to {c}", 2, 2 * c, rate * c, c, positions // rate) for c, positions, rate in LEVELS),
    *(Layer(f"unit of {c}", 7, c, c, c, positions) for c, positions, _ in LEVELS),
    *(Layer(f"pointwise {c}", 1, c, c, c, positions, adds=True) for c, positions, _ in LEVELS),
    Layer("outlet", 7, 96, 1, 1, 1920, activated=False),
]


class ConvCase:
    def __init__(self, layer: Layer, rows: int, frames: int, device: str) -> None:
        def drawn(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, dtype=torch.bfloat16, device=device)

        count = layer.positions * frames
        self.x_BLC = drawn(rows, count + layer.taps - 1, layer.inputs)
        self.weight_KCN = drawn(layer.taps, layer.inputs, layer.outputs) / (layer.taps * layer.inputs) ** 0.5
        self.bias_N = drawn(layer.outputs)
        self.residual_BTN = drawn(rows, count, layer.outputs) if layer.adds else None
        self.snake = Snake(drawn(layer.channels), drawn(layer.channels)) if layer.activated else None
        self.sum_BTN = drawn(rows, count, layer.outputs)
        self.activated_BTN = torch.empty_like(self.sum_BTN) if layer.activated else None
        self.floor = 2 * self.weight_KCN.numel() * rows * count / COMPUTE

    def run(self, settings: ConvSettings) -> None:
        given = self.x_BLC, self.weight_KCN, self.bias_N, 1, self.residual_BTN, self.snake
        causal_conv(*given, self.sum_BTN, self.activated_BTN, settings=settings)

    def seconds(self, settings: ConvSettings) -> float:
        """inf where the settings do not fit the device."""
        outputs = [self.sum_BTN] if self.activated_BTN is None else [self.sum_BTN, self.activated_BTN]
        for output in outputs:
            output.fill_(float("nan"))  # of the candidate before
        try:
            self.run(settings)
        except (TritonError, RuntimeError) as error:
            print(f"    refused: {settings}: {str(error)[:100]}")
            return float("inf")
        expected = [torch.empty_like(output) for output in outputs]
        given = self.x_BLC, self.weight_KCN, self.bias_N, 1, self.residual_BTN, self.snake
        reference.causal_conv(*given, *expected, *[None] * (2 - len(expected)))
        for output, right in zip(outputs, expected, strict=True):
            refuse_wrong(distance(output, right), settings)
        return replayed_seconds([partial(self.run, settings)] * 4, tidy=False)


def candidates(layer: Layer) -> list[ConvSettings]:
    """block_k 64 only where it divides the channels. Outputs that are three times a power of two also in two parts."""
    block_k = 64 if layer.inputs % 64 == 0 else 32
    widths = [(width, 0) for width in (16, 32, 64, 128, 256) if width < 2 * max(16, layer.outputs)]
    widths += [(width, width // 2) for width in (64, 128) if layer.outputs % (3 * width // 2) == 0]
    return [
        ConvSettings(block_m, block_n, block_k, num_warps, num_stages, rest_n)
        for block_m, (block_n, rest_n), num_warps, num_stages in product(
            (16, 32, 64, 128, 256), widths, (2, 4, 8), (2, 3, 4, 5)
        )
        if 2**10 <= block_m * (block_n + rest_n) / num_warps <= 2**12 or block_m * (block_n + rest_n) <= 2**10
        if num_stages * 2 * block_k * (block_m + block_n + rest_n) <= _MOST_SHARED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive_int, default=32)
    parser.add_argument("--frames", type=positive_int, default=25, help="of a chunk")
    parser.add_argument("--layers", nargs="+", choices=[layer.name for layer in LAYERS], metavar="NAME")
    parser.add_argument("--best", type=positive_int, default=5, help="how many of each layer to print")
    arguments = parser.parse_args()
    need_cuda()
    layers = [layer for layer in LAYERS if arguments.layers is None or layer.name in arguments.layers]
    compile_ahead([partial(ConvCase(each, 1, 8, "cpu").run, s) for each in layers for s in candidates(each)])
    for layer in layers:
        case = ConvCase(layer, arguments.rows, arguments.frames, "cuda")
        times = {settings: case.seconds(settings) for settings in candidates(layer)}
        chosen = choose_settings(case.x_BLC, case.weight_KCN)
        print(
            f"{layer.name}: chosen {case.seconds(chosen) * 1e6:.1f} us, best {min(times.values()) * 1e6:.1f} us, "
            f"floor {case.floor * 1e6:.1f} us"
        )
        for settings, seconds in sorted(times.items(), key=lambda pair: pair[1])[: arguments.best]:
            print(f"    {seconds * 1e6:8.1f} us  {case.floor / seconds:4.0%}  {settings}")


if __name__ == "__main__":
    main()
