"""Compiles Triton kernels for a Hopper GPU, without one: the interpreter runs code that the compiler refuses."""

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

_SERVER = """
import os, sys, traceback
from pathlib import Path
import torch, triton

for line in sys.stdin:
    folder = Path(line.rstrip("\\n"))
    child = os.fork()
    if not child:
        os.dup2(os.open(folder / "log", os.O_WRONLY | os.O_CREAT), 2)
        os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
        code = 1
        try:
            exec((folder / "compile_all.py").read_text(), {})
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for kernel, constants in KERNELS.items():
    constants = {name: value for name, value in (SIZES | constants).items() if name in kernel.arg_names}
    signature = {
        name: "constexpr" if name in constants else TYPES.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=indexed)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options=globals().get("OPTIONS", {}))
    assert ".entry" in compiled.asm["ptx"]
    if kernel in globals().get("WITHOUT_SHARED", ()):
        assert compiled.metadata.shared == 0, f"{kernel.__name__} moves data through shared memory"
"""


class GpuCompiler:
    """A process that has imported Triton, without its interpreter. A fork of it compiles each set of kernels."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment |= {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
        command = [sys.executable, "-c", _SERVER]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def compile(self, kernels: str, folder: Path) -> None:
        """Raises AssertionError with the compiler's output. kernels: code that defines `KERNELS`, the constants of each; `SIZES`,
        constants of all that take them; `TYPES` of arguments by name, where pointers are not to bf16 and numbers not int32; and, if
        need be, `OPTIONS` of the compiler and `WITHOUT_SHARED`, the kernels that may use no shared memory."""
        (folder / "compile_all.py").write_text(kernels + _COMPILE)
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(f"{folder}\n".encode())
        asked.flush()
        assert select.select([answers], [], [], PATIENCE_SECONDS)[0], "the compiler hangs"
        assert answers.readline() == b"0\n", (folder / "log").read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
