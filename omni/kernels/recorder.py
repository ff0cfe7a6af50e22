"""Records the variants of Triton kernels that a thread launches."""

import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from torch import Tensor

from omni.kernels.variant import ALIGNMENT, Parameters, Variant
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

_recorder: ContextVar["VariantRecorder | None"] = ContextVar("recorder", default=None)
_lock = threading.Lock()
_entered = 0
_replaced: dict[Any, Callable[..., object]] = {}
"""Triton's own `run` of each class whose method is replaced."""


class VariantRecorder:
    """variants: of the recorded launches, in order. unnamed: kernels with launches that another process could not compile."""

    def __init__(
        self, *, launches: bool = False, on_variant: Callable[[Variant], object] = lambda variant: None
    ) -> None:
        """launches: whether recorded launches are also made. Without that, arguments need no contents. on_variant: called with each
        variant when it is recorded."""
        self.variants: dict[Variant, None] = {}
        self.unnamed: set[str] = set()
        self._launches = launches
        self._on_variant = on_variant
        self._parameters: dict[int, Parameters] = {}
        self._seen: set[Hashable] = set()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While entered, records the launches of this thread. Launches of other threads are as always."""
        token = _recorder.set(self)
        _replace()
        try:
            yield
        finally:
            _restore()
            _recorder.reset(token)

    def take(
        self, launch: Callable[..., object], kernel: Any, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        """Records a launch. launch: Triton's function. Returns its result, or None if launches are not made."""
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        # The layers of a model make equal launches: only the first is examined.
        seen = (id(kernel), tuple(map(_glance, args)), tuple(zip(given, map(_glance, given.values()), strict=True)))
        if seen not in self._seen:
            self._seen.add(seen)
            self._record(kernel, args, given)
        return launch(kernel, *args, **kwargs) if self._launches else None

    def _record(self, kernel: Any, args: tuple[object, ...], given: dict[str, Any]) -> None:
        parameters = self._parameters.get(id(kernel))
        if parameters is None:
            parameters = self._parameters[id(kernel)] = Parameters.of(kernel)
        try:
            variant = Variant.of(parameters, dict(zip(parameters.names, args, strict=False)) | given)
        except TypeError as error:
            if parameters.kernel not in self.unnamed:
                self.unnamed.add(parameters.kernel)
                _log.debug("launches of %s are not recorded: %s", parameters.kernel, error)
        else:
            if variant not in self.variants:
                self.variants[variant] = None
                self._on_variant(variant)


def _glance(value: object) -> Hashable:
    """The properties of an argument that may affect compilation."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % ALIGNMENT
    if isinstance(value, tuple):
        return type(value), *map(_glance, value)
    # Other arguments, such as tensor descriptors, are examined each time.
    return value if isinstance(value, bool | int | float | str | None) else object()


def _replace() -> None:
    """Replaces `run` of Triton's functions while a thread records, so that launches at other times have no extra cost."""
    global _entered
    with _lock:
        _entered += 1
        if _entered > 1:
            return
        for function in _functions():
            _replaced[function] = function.run
            function.run = _observed(function.run)


def _restore() -> None:
    global _entered
    with _lock:
        _entered -= 1
        if not _entered:
            for function, run in _replaced.items():
                function.run = run
            _replaced.clear()


def _functions() -> list[Any]:
    """Triton's classes of kernels: compiled ones, and interpreted ones if they are loaded."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return []  # a torch for the CPU
    interpreter = sys.modules.get("triton.runtime.interpreter")
    return [JITFunction] if interpreter is None else [JITFunction, interpreter.InterpretedFunction]


def _observed(launch: Callable[..., object]) -> Callable[..., object]:
    @wraps(launch)
    def run(kernel: Any, *args: object, **kwargs: Any) -> object:
        recorder = _recorder.get()
        if recorder is None:
            return launch(kernel, *args, **kwargs)
        return recorder.take(launch, kernel, args, kwargs)

    return run
