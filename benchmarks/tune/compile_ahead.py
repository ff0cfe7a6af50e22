"""Compiles Triton kernels on all cores before a sweep measures them one by one: so that the GPU does not wait for the compiler.

Workers are forked before anything touches CUDA, launch on CPU tensors for a target that is only named, and leave what they compiled
in Triton's cache on disk.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)


class _NamedTarget:
    """The part of a driver that `JITFunction.run` needs in order to compile."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER


def compile_ahead(launches: Sequence[Callable[[], object]]) -> None:
    """Compiles the kernels that `launches` launch on CPU tensors, of the dtypes and sizes that kernels are specialized on."""
    if torch.cuda.is_initialized():
        raise RuntimeError("compile_ahead forks, so it comes before CUDA is initialized")
    workers = min(os.cpu_count() or 1, len(launches))
    processes = [get_context("fork").Process(target=_compile, args=(launches[i::workers],)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _compile(launches: Sequence[Callable[[], object]]) -> None:
    torch.set_num_threads(1)
    driver.set_active(_NamedTarget())
    run = JITFunction.run

    def only_compile(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        return run(self, *args, **kwargs | {"warmup": True})

    JITFunction.run = only_compile
    for launch in launches:
        try:
            launch()
        except RuntimeError:  # the sweep meets it again, and leaves this candidate out
            traceback.print_exc(limit=1)
