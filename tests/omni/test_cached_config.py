"""config.json, read once for all stages."""

import json
from pathlib import Path
from typing import Any

from omni.checkpoint import Checkpoint
from omni.checkpoint.cached_config import once_per_config


def test_a_config_is_read_again_only_if_it_changed(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    @once_per_config
    def read_width(raw: dict[str, Any]) -> int:
        asked.append(raw)
        return 2 * int(raw["width"])

    for width in (3, 3, 4, 3):
        (tmp_path / "config.json").write_text(json.dumps({"width": width}))
        assert read_width(Checkpoint(tmp_path)) == 2 * width
    assert asked == [{"width": 3}, {"width": 4}]
