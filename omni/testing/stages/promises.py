"""The error of a check: the broken promise of `omni.stage`, and the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager


def require(kept: bool, promise: str, remedy: str) -> None:
    """Raises AssertionError, which names the promise and the remedy, if it is not kept."""
    if not kept:
        raise AssertionError(f"stage contract broken: {promise}; {remedy}")


@contextmanager
def calling(call: str, remedy: str) -> Iterator[None]:
    """While entered, an exception is one that the contract does not allow: it becomes an AssertionError."""
    try:
        yield
    except AssertionError as error:
        if str(error).startswith("stage contract broken"):
            raise
        raise AssertionError(f"stage contract broken: {call} does not raise ({error!r}); {remedy}") from error
    except Exception as error:
        raise AssertionError(f"stage contract broken: {call} does not raise ({error!r}); {remedy}") from error
