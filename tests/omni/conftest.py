"""Tiny checkpoints. No test may change them."""

from pathlib import Path

import pytest

from omni.checkpoint import Checkpoint
from omni_qwen3_omni.tiny import write_tiny
from tests.support.tiny_text import write_text_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model with speech."""
    path = tmp_path_factory.mktemp("tiny") / "omni"
    write_tiny(path, seed=5)
    return path


@pytest.fixture(scope="session")
def checkpoint(tiny_model: Path) -> Checkpoint:
    return Checkpoint(tiny_model)


@pytest.fixture(scope="session", params=["tied", "moe"])
def text_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that writes: dense, and with experts."""
    path = tmp_path_factory.mktemp(request.param)
    write_text_model(path, request.param)
    return path
