"""The loggers of omni: what a handler of the user's program raises ends no thread that requests wait for."""

import logging
import sys
import traceback
from contextlib import suppress
from typing import Any


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """Prints an error of a handler or filter to standard error, as `logging.Handler.handleError` does, and does not raise it."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            # The record names the line that logs, not this one.
            super().log(level, msg, *args, **kwargs | {"stacklevel": kwargs.get("stacklevel", 1) + 1})
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(Exception):
                    traceback.print_exc()


def safe_logger(name: str) -> SafeLogger:
    return SafeLogger(logging.getLogger(name))
