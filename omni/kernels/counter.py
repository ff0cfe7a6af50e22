"""Counts the kernels that this process compiles itself."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class CompileCounter:
    """compiled: kernels that were compiled here, in any thread. cached: kernels that were in Triton's cache on disk."""

    def __init__(self) -> None:
        self.compiled = 0
        self.cached = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """While entered, counts, and logs each compiled kernel at debug level."""
        try:
            from triton import knobs
        except ImportError:
            yield  # a torch for the CPU
            return
        before = knobs.compilation.listener
        knobs.compilation.listener = self._listener(before)
        try:
            yield
        finally:
            knobs.compilation.listener = before

    def _listener(self, before: Callable[..., None] | None) -> Callable[..., None]:
        def listen(*, src: Any, cache_hit: bool, **rest: Any) -> None:
            if cache_hit:
                self.cached += 1
            else:
                self.compiled += 1
                _log.debug("compiled %s at its first launch", src.name)
            if before is not None:
                before(src=src, cache_hit=cache_hit, **rest)

        return listen
