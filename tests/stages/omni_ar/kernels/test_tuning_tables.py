"""Launch settings that are shipped: measured on one device, read on that one and on those alike, and valid for the kernels."""

import json
from pathlib import Path
from types import SimpleNamespace

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

KINDS = {
    "attention_decode": DecodeSettings,
    "attention_prefill": PrefillSettings,
    "linear": LinearSettings,
    "moe": MoeSettings,
}


def tables():
    """Every one that is shipped, by device and operation."""
    for path in sorted(Path(tuning.__file__).parent.glob("*/*.json")):
        shapes = json.loads(path.read_text())
        parts = shapes if path.stem == "in_steps" else {path.stem: shapes}
        for operation, part in parts.items():
            yield pytest.param(operation, part, id=f"{path.parent.name}-{path.stem}-{operation}")


@pytest.mark.parametrize(("operation", "shapes"), list(tables()))
def test_entries_are_the_arguments_of_launches(operation, shapes):
    for key, sizes in shapes.items():
        kind = (WideSettings if key.startswith("V") else RowSettings) if operation == "sampling" else KINDS[operation]
        assert sizes
        for size, entry in sizes.items():
            assert int(size) > 0
            # Linear maps that cuBLAS computes faster have none.
            if entry or operation != "linear":
                msgspec.convert(entry, kind)


@pytest.fixture
def an_h200(monkeypatch):
    """All devices are the same, without earlier look-ups, and no look-up is cached."""
    monkeypatch.setattr(table, "_folder", lambda device: "nvidia_h200")
    tuning.replace("none", "none", None)
    yield
    tuning.replace("none", "none", None)


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "folder"),
    [
        ("NVIDIA H200", (9, 0), 132, "nvidia_h200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, "nvidia_h200"),
        ("NVIDIA H100 PCIe", (9, 0), 114, "nvidia_h100_pcie"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, "nvidia_a100-sxm4-80gb"),
    ],
)
def test_a_device_takes_the_tables_of_one_alike(monkeypatch, name, capability, multiprocessors, folder):
    properties = SimpleNamespace(
        name=name, major=capability[0], minor=capability[1], multi_processor_count=multiprocessors
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert table._folder.__wrapped__(torch.device("cuda", 0)) == folder


def shipped(operation, key, size, kind):
    """The entry of a table, as a launch takes it."""
    path = Path(tuning.__file__).parent / "nvidia_h200" / f"{operation}.json"
    return msgspec.convert(json.loads(path.read_text())[key][str(size)], kind)


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("rows", [17, 32, 33, 64])
def test_a_streaming_kernel_has_at_most_16_rows(rows: int):
    """It repeats its code for each row: for 64 rows it took 20 s to compile, twice as long as any other kernel of a start."""
    folder, device = Path(tuning.__file__).parent / "nvidia_h200", torch.device("meta")
    shapes = {*json.loads((folder / "linear.json").read_text())}
    shapes |= {*json.loads((folder / "in_steps.json").read_text())["linear"]}
    kernels = {key: tuning.tuned("linear", device, key, rows, {}).get("kernel") for key in shapes}
    assert {*kernels.values()} == {None, "tiled"}, kernels


@pytest.mark.usefixtures("an_h200")
def test_settings_measured_in_steps_take_precedence():
    folder = Path(tuning.__file__).parent / "nvidia_h200"
    given, table = (json.loads((folder / f"{name}.json").read_text()) for name in ("in_steps", "linear"))
    key, device = "linear-N5120-D2048-bfloat16", torch.device("meta")
    assert shipped("linear", key, 1, LinearSettings) == msgspec.convert(
        tuning.tuned("linear", device, key, 1, {}), LinearSettings
    )
    for size in (8, 16, 32, 64):
        assert tuning.tuned("linear", device, key, size, {}) == given["linear"][key][str(size)]
    assert tuning.tuned("linear", device, key, 20, {}) == given["linear"][key]["32"]
    other = "linear-N4096-D4096-bfloat16"
    assert "16" not in given["linear"][other]
    assert tuning.tuned("linear", device, other, 16, {}) == table[other]["16"] != {}


@pytest.mark.usefixtures("an_h200")
def test_settings_can_be_replaced_for_measurements():
    x, weight = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((4, 4096), (2048, 4096)))
    key = "linear-N2048-D4096-bfloat16"
    first = linear_settings("linear", x, weight)
    other = {"kernel": "streamed", "block_n": 1, "block_d": 4096, "num_warps": 4}
    tuning.replace("linear", key, {4: other})
    assert linear_settings("linear", x, weight) == msgspec.convert(other, LinearSettings) != first
    tuning.replace("linear", key, {4: {}})
    assert linear_settings("linear", x, weight) is None
    tuning.replace("linear", key, None)
    assert linear_settings("linear", x, weight) == first


@pytest.mark.usefixtures("an_h200")
def test_settings_are_those_of_the_device():
    empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="meta")  # noqa: E731
    for rows, size in ((3, 4), (4, 4), (5, 8), (32, 32)):
        expected = shipped("linear", "linear-N2048-D4096-bfloat16", size, LinearSettings)
        assert linear_settings("linear", empty(rows, 4096), empty(2048, 4096)) == expected
    assert linear_settings("norm_linear", empty(4, 2048), empty(5120, 2048)) is None
    assert linear_settings("linear", empty(4, 100), empty(2048, 100)) is None
    assert linear_settings("linear", empty(65, 4096), empty(2048, 4096)) is None
    experts = empty(128, 2048, 768)
    assert isinstance(moe_settings(empty(2, 2048), experts, 8), FewSettings)
    assert isinstance(moe_settings(empty(2000, 2048), experts, 8), GroupedSettings)
    assert wide_settings(torch.device("meta"), 152_064) == shipped("sampling", "V152064", 1, WideSettings)
