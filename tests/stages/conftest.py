from collections.abc import Iterator

import pytest

from tests.support.gpu_compiler import GpuCompiler


@pytest.fixture(scope="session")
def gpu_compiler() -> Iterator[GpuCompiler]:
    made = GpuCompiler()
    yield made
    made.close()
