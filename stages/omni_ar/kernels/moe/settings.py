"""Which path a number of rows takes, and with which tiles."""

import torch
import triton
from torch import Tensor

from omni_ar.kernels.tuning import Config, tuned

_FEW = 4


def settings(x_TD: Tensor, down_EDI: Tensor, top_k: int) -> Config:
    """Measured settings, or a guess for a shape that nobody has measured. `few` is 1 for the path that sorts nothing."""
    tokens = x_TD.shape[0]
    experts, width, intermediate = down_EDI.shape
    key = shape_key(experts, top_k, width, intermediate, x_TD.dtype)
    return tuned(
        "moe", x_TD.device, key, tokens, default_settings(tokens, experts, top_k, width, intermediate, x_TD.dtype)
    )


def shape_key(experts: int, top_k: int, width: int, intermediate: int, dtype: torch.dtype) -> str:
    """A shape's key in the table."""
    return f"E{experts}-K{top_k}-D{width}-I{intermediate}-{str(dtype).removeprefix('torch.')}"


def default_settings(
    tokens: int, experts: int, top_k: int, width: int, intermediate: int, dtype: torch.dtype
) -> Config:
    """A guess: few rows each on their own; blocks as high as an expert has rows on average, so that most experts need one."""
    if tokens <= _FEW:
        gate_d, down_i = (min(limit, triton.next_power_of_2(n)) for limit, n in ((2048, width), (1024, intermediate)))
        return {
            "few": 1,
            "gate_i": 2,
            "gate_d": gate_d,
            "gate_warps": 4,
            "down_d": 1,
            "down_i": down_i,
            "down_warps": 1,
        }
    rows = tokens * top_k / experts
    if dtype == torch.float32 or rows <= 8:
        return _few_grouped(dtype)
    if rows <= 24:
        return _grouped(32, gate=(64, 128, 3, 4, 1, 0), down=(128, 128, 3, 4, 1, 0))
    if rows <= 64:
        return _grouped(64, gate=(64, 64, 4, 4, 0, 0), down=(128, 64, 4, 4, 0, 0))
    return _grouped(128, gate=(64, 64, 4, 8, 0, 0), down=(128, 64, 4, 8, 0, 0))


def _few_grouped(dtype: torch.dtype) -> Config:
    if dtype == torch.float32:  # without tensor cores: products of registers, so small tiles
        return _grouped(16, gate=(16, 32, 2, 4, 0, 0), down=(32, 32, 2, 4, 0, 0))
    return _grouped(16, gate=(32, 128, 4, 4, 1, 0), down=(64, 128, 4, 4, 1, 0))


def _grouped(block_m: int, gate: tuple[int, ...], down: tuple[int, ...]) -> dict[str, int]:
    names = ("n", "k", "stages", "warps", "left", "tma")
    products = {"gate": gate, "down": down}
    tiles = {
        f"{product}_{name}": value
        for product, values in products.items()
        for name, value in zip(names, values, strict=True)
    }
    return {"few": 0, "overlap": 0, "block_m": block_m, **tiles}
