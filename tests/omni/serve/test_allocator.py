"""The memory of the server's process goes back to the system."""

import platform
import subprocess

import pytest

from omni.serve.allocator import return_large_buffers
from tests.omni.cli.echo_program import environment, program
from tests.support.tiers import SLOW

pytestmark = pytest.mark.thorough

_AT_THE_END = """
import atexit, ctypes
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
def say():
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Info
    larger = bytes(24 << 20)
    del larger
    before = mallinfo().hblkhd
    large = bytes(16 << 20)
    print("mapped alone:", mallinfo().hblkhd - before >= len(large), file=sys.stderr)
atexit.register(say)
"""  # noqa: E501


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("command", "settings", "alone"),
    [
        (["serve", "no-model", "--port", "0"], {}, True),
        pytest.param(["serve", "no-model", "--port", "0"], {"MALLOC_MMAP_THRESHOLD_": "33554432"}, False, marks=SLOW),
        pytest.param(["run", "no-model", "hello"], {}, False, marks=SLOW),
    ],
)
def test_large_buffers_are_mapped_alone(command: list[str], settings: dict[str, str], alone: bool) -> None:
    """Also after a larger one was freed. Not where the user has set it, nor in other commands."""
    done = subprocess.run(
        [*program(before=_AT_THE_END), *command],
        capture_output=True,
        text=True,
        env={**environment(), **settings},
        check=False,
    )
    assert f"mapped alone: {alone}" in done.stderr


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not return_large_buffers()
