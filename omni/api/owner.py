"""The process that loaded a model. Imports no torch: forks are noticed from the first import of `Omni` on."""

from __future__ import annotations

import gc
import os
import sys
import threading

from omni.errors import ForkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch


class SwitchInterval:
    """Sets the interpreter's switch interval to the smallest that an open model requests, and restores the program's own when the
    last model is closed. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[float] = []
        self._own = 0.0

    def lower(self, seconds: float) -> None:
        with self._lock:
            if not self._asked:
                self._own = sys.getswitchinterval()
            self._asked.append(seconds)
            self._apply()

    def restore(self, seconds: float) -> None:
        with self._lock:
            self._asked.remove(seconds)
            self._apply()

    def _apply(self) -> None:
        # Python cuts to whole microseconds.
        sys.setswitchinterval(min((self._own, *self._asked)) + 5e-7)


SWITCH_INTERVAL = SwitchInterval()
"""The switch interval of this interpreter."""


_OWN_FREEZE = 10_000
"""A program has frozen objects itself if there are so many. Python 3.12 counts a few hundred immortal ones in each program."""


class FrozenObjects:
    """Excludes objects from garbage collection that exist when a model is opened, among them those of its imports, until all models
    are closed. A full collection would stop all threads for the longer the more objects there are. A program that excludes objects
    itself before is left alone. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models = 0
        self._freezes = False

    def freeze(self) -> None:
        with self._lock:
            if not self._models:
                self._freezes = gc.get_freeze_count() < _OWN_FREEZE
            self._models += 1
            if self._freezes:
                gc.freeze()

    def unfreeze(self) -> None:
        """The closed model's objects are in cycles, for the next full collection. After it those of models that are still open are
        excluded again."""
        with self._lock:
            self._models -= 1
            if self._freezes:
                gc.unfreeze()
                if self._models and self._after_collection not in gc.callbacks:
                    gc.callbacks.append(self._after_collection)

    def _after_collection(self, phase: str, info: dict[str, int]) -> None:
        """Without the lock, whose owner may be the thread that collects."""
        if phase == "stop" and info["generation"] == 2:
            gc.callbacks.remove(self._after_collection)
            if self._models:
                gc.freeze()


FROZEN_OBJECTS = FrozenObjects()
"""The objects of this interpreter that are excluded from garbage collection."""


class OwnerProcess:
    """A forked child gets a copy of the model's memory, but none of its threads: a wait for them would never end. And the device
    and files that it shares are the parent's. So a forked child must not use the model."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    def check(self, doing: str) -> None:
        if self.forked:
            raise ForkError(
                f"{doing}: this process was forked from the one that loaded the model (process {self._process}), and the model's "
                'threads stayed there; start the process with start method "spawn", or load the model in it'
            )


class _Forks:
    """Whether this process was forked from one that had torch, and whether that one used a CUDA device."""

    def __init__(self) -> None:
        self.forked = self._torch = False
        self._uses_cuda = self.parent_used_cuda = False
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self._torch = "torch" in sys.modules
        self._uses_cuda = self._torch and sys.modules["torch"].cuda.is_initialized()

    def _in_child(self) -> None:
        self.forked, self.parent_used_cuda = self.forked or self._torch, self.parent_used_cuda or self._uses_cuda


_FORKS = _Forks()


def adapt_to_fork(device: torch.device) -> None:
    """Before a model is loaded. Raises ForkError where a forked process cannot use the device. On the CPU it computes with one
    thread: OpenMP's others stayed with the parent, and a wait for them never ends."""
    import torch

    if _FORKS.forked and device.type == "cpu":
        torch.set_num_threads(1)
    elif _FORKS.parent_used_cuda and device.type == "cuda":
        raise ForkError(
            f"loading a model on {device}: this process was forked from one that used a CUDA device, which no device can be used "
            'after; start the process with start method "spawn"'
        )
