"""Struct types that msgspec meets for the first time, in all threads of a program at once."""

import subprocess
import sys
from pathlib import Path

from tests.support.entry_points import SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS

_KINDS, _THREADS = 100, 8
_TYPES = """
from typing import Annotated
import msgspec
class Inner{i}(msgspec.Struct):
{fields}
class Outer{i}(msgspec.Struct):
    inner: "Inner{i}"
    more: "dict[str, Inner{i}] | None" = None
{fields}
"""
_FIELDS = "\n".join(f'    f{field}: "Annotated[int, msgspec.Meta(ge=0)] | None" = None' for field in range(12))
_PROGRAM = """
import sys, threading
sys.path[:0] = {roots}
import msgspec
import new_types
{imports}

sys.setswitchinterval(1e-6)
together = threading.Barrier({threads})
failures = []

def work():
    try:
        for index in range({kinds}):
            outer, inner = (getattr(new_types, f"{{name}}{{index}}") for name in ("Outer", "Inner"))
            given = outer(inner(f0=1))
            together.wait()
            assert {use} == given
    except BaseException as error:
        failures.append(error)
        together.abort()

threads = [threading.Thread(target=work) for _ in range({threads})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures or "done")
"""


def assert_new_types_at_once(folder: Path, imports: str, use: str) -> None:
    """Has threads use a struct type together that none of them has used, over and over. It happens in a process of its own, which
    msgspec would end by a segmentation fault. folder: for the program. use: an expression by msgspec that gives a struct equal to
    `given`, an `outer`."""
    types = (_TYPES.format(i=index, fields=_FIELDS) for index in range(_KINDS))
    (folder / "new_types.py").write_text("".join(types))
    program = folder / "program.py"
    program.write_text(_PROGRAM.format(roots=SOURCE_ROOTS, imports=imports, use=use, threads=_THREADS, kinds=_KINDS))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
