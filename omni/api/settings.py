"""The settings that a user gives to a model. Imports no torch: the settings determine whether a process is started before torch is
imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from omni.config import SettingsLayer, read_config
from omni.pipeline import ENGINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


def layers_of(
    *,
    config: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, object] | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    load_format: str | None = None,
    timeline: str | os.PathLike[str] | None = None,
    place: Mapping[str, str | Sequence[str]] | None = None,
    origin: str = "overrides",
) -> list[SettingsLayer]:
    """All settings of the user, later ones overriding earlier ones: file, overrides, arguments.

    origin: of the overrides. Raises ConfigError for a file that cannot be read.
    """
    names = {
        "device": str(device) if device is not None else None,
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else None,
        "load_format": load_format,
        "timeline": os.fspath(timeline) if timeline is not None else None,
    }
    given: dict[str, object] = {f"{ENGINE}.{name}": value for name, value in names.items() if value is not None}
    given |= {f"{stage}.place": places for stage, places in (place or {}).items()}
    file = [read_config(config)] if config is not None else []
    return [*file, SettingsLayer(origin, overrides or {}), SettingsLayer("argument", given)]
