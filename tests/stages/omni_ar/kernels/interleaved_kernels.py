"""Kernels of several ranks that use each other's memory, under Triton's interpreter in one process: their programs run in turn, an
access to that memory at a time, in an order that a seed draws."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.runtime import interpreter

from omni.testing.simulation.coroutine import PhaseThread

_MOST_STEPS = 2_500


@dataclass(eq=False)
class _Task:
    """A host's work, a program of a kernel, or the arrival of a part of what a program has stored at another rank. rank: where it
    runs. program, programs: of a kernel. waits_for: tasks that end before it continues. stored: its stores at other ranks."""

    work: Callable[[], None]
    rank: int
    program: int = 0
    programs: int = 1
    thread: PhaseThread | None = None
    begun: bool = False
    ended: bool = False
    waits_for: Sequence["_Task"] = ()
    stored: list["_Task"] = field(default_factory=list)

    def go_on(self) -> None:
        if self.thread is None:
            self.work()
            self.ended = True
            return
        builder = interpreter.interpreter_builder
        builder.grid_idx, builder.grid_dim = (self.program, 0, 0), (self.programs, 1, 1)
        begun, self.begun = self.begun, True
        self.ended = self.thread.resume() if begun else self.thread.run(self.work)


class InterleavedRanks:
    """memories: of each rank, CPU tensors. A rank's kernels run one after the other. What one stores in another rank's memory
    arrives in two parts, in any order, at any time before the kernel is complete."""

    def __init__(self, memories: Sequence[Tensor], seed: int) -> None:
        self._ranges = [(memory.data_ptr(), memory.data_ptr() + memory.nbytes) for memory in memories]
        self._chance = Random(seed)
        self._tasks: list[_Task] = []
        self._current: _Task | None = None

    def run(self, hosts: Sequence[Callable[[], None]]) -> None:
        """Runs the work of each rank's host. Raises AssertionError for a deadlock of kernels."""
        self._tasks = [_Task(host, rank, thread=PhaseThread()) for rank, host in enumerate(hosts)]
        try:
            for _ in range(_MOST_STEPS):
                self._tasks = [task for task in self._tasks if not task.ended]
                ready = [task for task in self._tasks if all(other.ended for other in task.waits_for)]
                if not ready:
                    assert not self._tasks
                    return
                self._current = self._chance.choice(ready)
                self._current.go_on()
                if self._current.ended and self._current.thread is not None:
                    self._current.thread.close()
            raise AssertionError("the kernels do not end")
        finally:
            for task in self._tasks:
                if task.thread is not None and not task.ended:
                    task.thread.close()

    @contextmanager
    def launching(self, *kernels: tuple[object, str]) -> Iterator[None]:
        """While entered, launches of these kernels (module, name) are interleaved."""
        builder = interpreter.interpreter_builder
        load, store, add = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw

        def masked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
            self._turn(pointers, mask)
            return load(pointers, mask, *rest)

        def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            at = self._turn(pointers, mask)
            task = self._current
            if task is None or at in (None, task.rank):
                return store(pointers, value, mask, *rest)
            early = np.array([self._chance.random() < 0.5 for _ in range(mask.data.size)]).reshape(mask.data.shape)
            for chosen in (early, ~early):
                part = interpreter.TensorHandle(mask.data & chosen, mask.dtype)
                arrival = _Task(partial(store, pointers, value, part, *rest), task.rank)
                task.stored.append(arrival)
                self._tasks.append(arrival)
            return None

        def atomic_rmw(operation: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._turn(pointer, mask)
            return add(operation, pointer, value, mask, *rest)

        with pytest.MonkeyPatch.context() as patch:
            # Each launch would take the patches of another one back with its own.
            patches = interpreter._patch_lang(getattr(*kernels[0]).fn)
            patch.setattr(builder, "create_masked_load", masked_load)
            patch.setattr(builder, "create_masked_store", masked_store)
            patch.setattr(builder, "create_atomic_rmw", atomic_rmw)
            patch.setattr(builder, "set_grid_idx", lambda *_: None)
            patch.setattr(builder, "set_grid_dim", lambda *_: None)
            patch.setattr(builder, "grid_idx", (0, 0, 0), raising=False)
            patch.setattr(builder, "grid_dim", (1, 1, 1), raising=False)
            for module, name in kernels:
                patch.setattr(module, name, _Launcher(self, getattr(module, name)))
            try:
                yield
            finally:
                if patches is not None:
                    patches.restore()

    def launch(self, kernel: Any, grid: tuple[int, ...], args: Sequence[object], options: dict[str, object]) -> None:
        host = self._current
        assert host is not None
        assert host.thread is not None
        work = partial(kernel[(1,)], *args, **options)
        programs = [_Task(work, host.rank, index, grid[0], PhaseThread()) for index in range(grid[0])]
        self._tasks += programs
        host.waits_for = programs
        host.thread.pause()
        # A kernel is complete when its stores have arrived.
        host.waits_for = [arrival for program in programs for arrival in program.stored]
        host.thread.pause()

    def _turn(self, pointers: Any, mask: Any) -> int | None:
        """The rank whose memory is accessed, after others had their turns; None for other memory."""
        task, used = self._current, pointers.data[mask.data.astype(bool)]
        at = None
        if used.size:
            at = next((rank for rank, (start, end) in enumerate(self._ranges) if start <= used.flat[0] < end), None)
        if task is not None and at is not None:
            assert task.thread is not None
            task.thread.pause()
        return at


class _Launcher:
    """The kernel of an `InterleavedRanks`."""

    def __init__(self, ranks: InterleavedRanks, kernel: Any) -> None:
        self._ranks, self._kernel = ranks, kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **options: self._ranks.launch(self._kernel, grid, args, options)
