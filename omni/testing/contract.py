"""The errors of checks: the broken promise of a contract, and the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager


class Contract:
    """Raises AssertionErrors of the checks of one contract. name: of the checked object."""

    def __init__(self, name: str) -> None:
        self._broken = f"{name} contract broken"

    def require(self, kept: bool, promise: str, remedy: str = "") -> None:
        """Raises AssertionError, which names the promise and the remedy, if it is not kept."""
        if not kept:
            raise self.error(promise, remedy)

    def error(self, promise: str, remedy: str = "") -> AssertionError:
        return AssertionError(f"{self._broken}: {promise}" + (f"; {remedy}" if remedy else ""))

    @contextmanager
    def calling(self, call: str, remedy: str) -> Iterator[None]:
        """While entered, an exception is one that the contract does not allow: it becomes an AssertionError."""
        try:
            yield
        except Exception as error:
            if isinstance(error, AssertionError) and str(error).startswith(self._broken):
                raise
            raise self.error(f"{call} does not raise ({error!r})", remedy) from error
