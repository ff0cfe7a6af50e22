"""Threads that meet struct types for the first time, all at once."""

import subprocess
import sys
from pathlib import Path

KINDS, THREADS = 100, 8
TYPES = """
from typing import Annotated
import msgspec
class Inner{i}(msgspec.Struct):
{fields}
class Outer{i}(msgspec.Struct):
    inner: "Inner{i}"
    more: "dict[str, Inner{i}] | None" = None
{fields}
"""
FIELDS = "\n".join(f'    f{field}: "Annotated[int, msgspec.Meta(ge=0)] | None" = None' for field in range(12))
DECODES = f"""
import sys, threading
from omni.ipc import Codec, Typed
import new_types

sys.setswitchinterval(1e-6)
together = threading.Barrier({THREADS})

def work():
    codec = Codec(Typed, inline_bytes=None)
    for index in range({KINDS}):
        outer, inner = (getattr(new_types, f"{{name}}{{index}}") for name in ("Outer", "Inner"))
        given = outer(inner(f0=1))
        message = codec.encode(Typed(given))
        together.wait()
        assert codec.decode(*message).value == given

threads = [threading.Thread(target=work) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("decoded")
"""


def test_threads_may_decode_a_new_type_at_once(tmp_path: Path) -> None:
    """In a process of its own, which msgspec would end by a segmentation fault."""
    (tmp_path / "new_types.py").write_text("".join(TYPES.format(i=index, fields=FIELDS) for index in range(KINDS)))
    (tmp_path / "decodes.py").write_text(DECODES)
    done = subprocess.run([sys.executable, tmp_path / "decodes.py"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "decoded\n"), done.stderr
