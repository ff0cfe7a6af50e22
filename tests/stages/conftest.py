from collections.abc import Iterator

import pytest

from tests.support.gpu_compiler import GpuCompiler
from tests.support.tiny_drafters import cheap_passes

__all__ = ["cheap_passes"]


@pytest.fixture(scope="session")
def gpu_compiler() -> Iterator[GpuCompiler]:
    made = GpuCompiler()
    yield made
    made.close()
