"""Names of devices, without one: what `open_device` would open."""

import pytest
import torch

from omni.device.select import name_device
from omni.device.sync_operators import Copy


@pytest.mark.parametrize(
    ("name", "there", "device"),
    [
        (None, False, torch.device("cpu")),
        (None, True, torch.device("cuda", 0)),
        ("cpu", True, torch.device("cpu")),
        ("cuda", False, torch.device("cuda", 0)),
        ("cuda:3", False, torch.device("cuda", 3)),
    ],
)
def test_a_name_stands_for_one_device(
    name: str | None, there: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert name_device(name) == device


@pytest.mark.parametrize(("non_blocking", "waits"), [(True, False), (False, True)])
def test_a_copy_to_memory_that_torch_makes_waits_only_if_it_is_asked_to(non_blocking: bool, waits: bool):
    """Such memory is pinned. A meta tensor stands for one on the device: all that is asked is where it is."""
    source = torch.empty(2, device="meta")
    assert Copy(source, None, torch.device("cpu"), non_blocking).waits == waits
    assert Copy(source, torch.empty(2), torch.device("cpu"), non_blocking).waits, "this memory is pageable"
