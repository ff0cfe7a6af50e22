"""Settings of linear maps while they are tuned: those that are shipped, and what a file in the form of `in_steps.json` changes."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
from descent import Choice, Setting

from omni_ar.kernels import tuning
from omni_ar.kernels.linear.settings import MOST_ROWS, LinearSettings

OPERATION = "linear"


class ChangedTables:
    """Settings by key and number of rows: the shipped ones, and changes. changed: by key and rows, as in the file."""

    def __init__(self, device: torch.device, changed: Mapping[str, Mapping[int, tuning.Config]]) -> None:
        self._device = device
        self.changed = {key: dict(sizes) for key, sizes in changed.items()}
        self.restore(self.changed)

    def sizes(self, key: str) -> dict[int, tuning.Config]:
        return {**tuning.shipped(OPERATION, self._device, key), **self.changed.get(key, {})}

    def setting(self, key: str, rows: int) -> Setting:
        self.restore([key])
        return converted(tuning.tuned(OPERATION, self._device, key, rows, {}))

    def use(self, choice: Choice, rows: int) -> None:
        """Makes kernels use a choice, until its keys are restored or used with others."""
        for key, setting in choice.items():
            tuning.replace(OPERATION, key, placed(self.sizes(key), rows, setting))

    def restore(self, keys: Iterable[str]) -> None:
        for key in keys:
            tuning.replace(OPERATION, key, self.sizes(key))

    def keep(self, choice: Choice, rows: int) -> None:
        for key, setting in choice.items():
            shipped, sizes = tuning.shipped(OPERATION, self._device, key), placed(self.sizes(key), rows, setting)
            changes = {size: config for size, config in sizes.items() if config != shipped.get(size)}
            if changes:
                self.changed[key] = changes
        self.restore(choice)


def placed(sizes: Mapping[int, tuning.Config], rows: int, setting: Setting) -> dict[int, tuning.Config]:
    """`sizes` with `setting` for `rows`. Larger numbers of rows without settings of their own keep those that they have now."""
    largest = sizes[max(sizes)] if sizes else {}
    nearest = sizes[min(size for size in sizes if size >= rows)] if rows <= max(sizes, default=0) else largest
    if converted(nearest) == setting:
        return dict(sizes)
    beyond = {MOST_ROWS: largest} if max(sizes, default=0) <= rows else {}
    config: tuning.Config = {} if setting is None else msgspec.to_builtins(setting)
    return {**sizes, **beyond, rows: config}


def converted(config: tuning.Config) -> Setting:
    setting: Setting = msgspec.convert(config, LinearSettings) if config else None
    return setting


def read_changes(out: Path | None) -> dict[str, dict[int, tuning.Config]]:
    """What a file has for linear maps."""
    there = json.loads(out.read_text()) if out is not None and out.exists() else {}
    return {
        key: {int(size): config for size, config in sizes.items()} for key, sizes in there.get(OPERATION, {}).items()
    }


def save(out: Path | None, changes: Mapping[str, Mapping[int, tuning.Config]]) -> None:
    """Writes changes over what the file has."""
    if out is None:
        return
    whole = json.loads(out.read_text()) if out.exists() else {}
    keys = whole.setdefault(OPERATION, {})
    for key, sizes in changes.items():
        merged = keys.get(key, {}) | {str(size): config for size, config in sizes.items()}
        keys[key] = {size: merged[size] for size in sorted(merged, key=int)}
    out.write_text(json.dumps(whole, indent=1) + "\n")
