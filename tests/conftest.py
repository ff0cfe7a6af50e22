"""Tests run offline, on one thread, and on the CPU unless they are marked `gpu`."""

import os

# Read when transformers is imported, so it is set before anything imports it.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

if not torch.cuda.is_available():
    # Read when triton is imported: without a device, kernels run under its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings

# The order of a reduction follows the number of threads.
torch.set_num_threads(1)

# A shared machine makes single examples slow now and then; that is no failure.
settings.register_profile("omni", deadline=None, print_blob=True)
settings.load_profile("omni")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
