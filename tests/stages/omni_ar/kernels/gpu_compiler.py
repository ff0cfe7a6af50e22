"""Compiles Triton kernels for a Hopper GPU, without one: the interpreter runs code that the compiler refuses."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.entry_points import REPOSITORY

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


def compile_for_gpu(kernels: str, folder: Path) -> None:
    """Raises AssertionError with the compiler's output. kernels: code that defines `KERNELS`, the constants of each; `SIZES`,
    constants of all that take them; `TYPES` of arguments by name, where pointers are not to bf16 and numbers not int32; and, if
    need be, `OPTIONS` of the compiler and `WITHOUT_SHARED`, the kernels that may use no shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'stages'}"}
    script = folder / "compile_all.py"
    script.write_text(kernels + _COMPILE)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
