"""Fixtures of several files of kernel tests."""

from types import SimpleNamespace

import pytest
import torch

from omni_ar.kernels.sampling.settings import WideSettings


@pytest.fixture
def small_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of 100 is a wide one."""
    settings = WideSettings(block=32, tile=8, nucleus=4, scan_warps=4, scan_registers=0, finish_warps=4)
    monkeypatch.setattr("omni_ar.kernels.sampling.kernel._CAPACITY", 32)
    monkeypatch.setattr("omni_ar.kernels.sampling.kernel._FEW", 16)
    monkeypatch.setattr("omni_ar.kernels.sampling.kernel.wide_settings", lambda device, vocab: settings)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every CUDA device has the properties of an H200, also where there is none."""
    found = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
