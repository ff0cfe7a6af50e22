"""Looks up launch settings.

`<device>/<operation>.json` beside this file maps a shape's key to a map from a size (rows, tokens) to settings:
`{"H32-K8-D128-B16-bf16": {"1": {"block_n": 64, "splits": 32, ...}, "8": {...}}}`. The `settings` function of an
operation converts them to the struct that its kernels take. The scripts in `benchmarks/tune`, which time an operation
by itself, write the files.

`<device>/in_steps.json` maps operations to such maps. Its settings were measured in the steps of a model and take
precedence.

A device without a folder takes that of one with as many multiprocessors of the same compute capability: an H100 that of the
H200, which differs in memory alone.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

Config = Mapping[str, object]
Sizes = Mapping[int, Config]
P = ParamSpec("P")
R = TypeVar("R")

_IN_STEPS = "in_steps"
_ALIKE = {(9, 0, 132): "nvidia_h200"}
"""Folders by compute capability and number of multiprocessors."""

_caches: list[Callable[[], None]] = []
_replaced: dict[tuple[str, str], Sizes] = {}


def cached_lookup(look_up: Callable[P, R]) -> Callable[P, R]:
    """Caches the results of a function of the tables: every launch that is not captured looks its settings up."""
    kept = lru_cache(maxsize=4096)(look_up)
    _caches.append(kept.cache_clear)
    return kept  # type: ignore[return-value]  # all arguments (sizes, devices) are hashable


def tuned(operation: str, device: torch.device, key: str, size: int, default: Config) -> Config:
    """Settings for `size` rows: those of the nearest measured size not below it, else of the largest; `default` for
    shapes and devices without measurements. device: the device of the operation."""
    measured = _measured(operation, device, key, size)
    return default if measured is None else measured


def shipped(operation: str, device: torch.device, key: str) -> Sizes:
    """All settings of a shape, by size; empty for a shape without measurements."""
    folder = _folder(device)
    return _table(folder, operation).get(key, {}) | _in_steps(folder).get(operation, {}).get(key, {})


def replace(operation: str, key: str, sizes: Sizes | None) -> None:
    """Replaces a shape's settings on every device; None restores the shipped ones. For measurements, while no graph is
    captured with other settings."""
    if sizes is None:
        _replaced.pop((operation, key), None)
    else:
        _replaced[operation, key] = sizes
    for clear in _caches:
        clear()


@cached_lookup
def _measured(operation: str, device: torch.device, key: str, size: int) -> Config | None:
    sizes = _replaced.get((operation, key)) or shipped(operation, device, key)
    if not sizes:
        return None
    return sizes[min((s for s in sizes if s >= size), default=max(sizes))]


@cache
def _folder(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    named = properties.name.lower().replace(" ", "_")
    if (Path(__file__).parent / named).exists():
        return named
    return _ALIKE.get((properties.major, properties.minor, properties.multi_processor_count), named)


@cache
def _in_steps(folder: str) -> dict[str, dict[str, dict[int, Config]]]:
    path = Path(__file__).parent / folder / f"{_IN_STEPS}.json"
    if not path.exists():
        return {}
    return {operation: _by_size(shapes) for operation, shapes in json.loads(path.read_text()).items()}


@cache
def _table(folder: str, operation: str) -> dict[str, dict[int, Config]]:
    path = Path(__file__).parent / folder / f"{operation}.json"
    return _by_size(json.loads(path.read_text())) if path.exists() else {}


def _by_size(shapes: Mapping[str, Mapping[str, Config]]) -> dict[str, dict[int, Config]]:
    return {key: {int(size): config for size, config in sizes.items()} for key, sizes in shapes.items()}
