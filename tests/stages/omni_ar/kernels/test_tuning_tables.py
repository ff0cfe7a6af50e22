"""Launch settings that are shipped: what is measured on one device is read on that device alone, and must be what kernels take."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from omni_ar.kernels import tuning
from omni_ar.kernels.attention.settings import DecodeSettings, PrefillSettings
from omni_ar.kernels.linear.settings import LinearSettings
from omni_ar.kernels.linear.settings import settings as linear_settings
from omni_ar.kernels.tuning import table

pytest.importorskip("triton")

from omni_ar.kernels.moe.settings import FewSettings, GroupedSettings, MoeSettings
from omni_ar.kernels.moe.settings import settings as moe_settings
from omni_ar.kernels.sampling.settings import RowSettings, WideSettings, wide_settings

TABLES = sorted(Path(tuning.__file__).parent.glob("*/*.json"))
KINDS = {
    "attention_decode": DecodeSettings,
    "attention_prefill": PrefillSettings,
    "linear": LinearSettings,
    "moe": MoeSettings,
}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_entries_are_what_launches_take(path):
    for key, sizes in json.loads(path.read_text()).items():
        kind = (WideSettings if key.startswith("V") else RowSettings) if path.stem == "sampling" else KINDS[path.stem]
        assert sizes
        for size, entry in sizes.items():
            assert int(size) > 0
            # Linear maps that cuBLAS computes faster have none.
            if entry or path.stem != "linear":
                msgspec.convert(entry, kind)


def shipped(operation, key, size, kind):
    """The entry of a table, as a launch takes it."""
    path = Path(tuning.__file__).parent / "nvidia_h200" / f"{operation}.json"
    return msgspec.convert(json.loads(path.read_text())[key][str(size)], kind)


def test_settings_are_those_of_the_device(monkeypatch):
    """Of shapes that are known there, on a device that no other test asks for."""
    monkeypatch.setattr(table, "_folder", lambda device: "nvidia_h200")
    empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="meta")  # noqa: E731
    for rows, size in ((3, 4), (4, 4), (5, 8), (64, 64)):
        expected = shipped("linear", "linear-N2048-D4096-bfloat16", size, LinearSettings)
        assert linear_settings("linear", empty(rows, 4096), empty(2048, 4096)) == expected
    assert linear_settings("norm_linear", empty(4, 2048), empty(5120, 2048)) is None
    assert linear_settings("linear", empty(4, 100), empty(2048, 100)) is None
    assert linear_settings("linear", empty(65, 4096), empty(2048, 4096)) is None
    experts = empty(128, 2048, 768)
    assert isinstance(moe_settings(empty(4, 2048), experts, 8), FewSettings)
    assert isinstance(moe_settings(empty(2000, 2048), experts, 8), GroupedSettings)
    assert wide_settings(torch.device("meta"), 152_064) == shipped("sampling", "V152064", 1, WideSettings)
