"""Looks launch settings up.

`<device>/<operation>.json` beside this file maps a shape's key to a map from a size (rows, tokens) to settings:
`{"H32-K8-D128-B16-bf16": {"1": {"block_n": 64, "splits": 32, ...}, "8": {...}}}`. The `settings` of an operation convert them to
the struct that its kernels take. Written by the scripts in `benchmarks/tune`.
"""

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

import torch

Config = Mapping[str, object]


def tuned(operation: str, device: torch.device, key: str, size: int, default: Config) -> Config:
    """Settings for `size` rows: those measured for the nearest size not below it, else the largest; `default` for shapes and
    devices that nobody has measured. device: where the operation runs."""
    measured = _measured(operation, device, key, size)
    return default if measured is None else measured


@lru_cache(maxsize=4096)
def _measured(operation: str, device: torch.device, key: str, size: int) -> Config | None:
    # Asked for in every launch of a prefill, whose launches the host makes one by one.
    sizes = _table(_folder(device), operation).get(key)
    if not sizes:
        return None
    return sizes[min((s for s in sizes if s >= size), default=max(sizes))]


@cache
def _folder(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return torch.cuda.get_device_name(device).lower().replace(" ", "_")


@cache
def _table(folder: str, operation: str) -> dict[str, dict[int, Config]]:
    path = Path(__file__).parent / folder / f"{operation}.json"
    if not path.exists():
        return {}
    shapes = json.loads(path.read_text())
    return {key: {int(size): config for size, config in sizes.items()} for key, sizes in shapes.items()}
