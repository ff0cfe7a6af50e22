from collections.abc import Iterator

import pytest

from omni_ar.drafters import ModelDrafter
from omni_ar.model import PassWeights
from tests.support.gpu_compiler import GpuCompiler


@pytest.fixture(scope="session")
def gpu_compiler() -> Iterator[GpuCompiler]:
    made = GpuCompiler()
    yield made
    made.close()


@pytest.fixture
def cheap_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of drafters count as taking no time. In the tests' sizes they take as long as steps, so that drafts would not pay."""
    monkeypatch.setattr(ModelDrafter, "pass_weights", PassWeights(0, 0))
