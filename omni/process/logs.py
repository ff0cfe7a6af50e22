"""Log records of the engine process, in the logging of the user's process."""

import logging
from collections.abc import Callable

from omni.process.messages import LogRecordOut
from omni.utils.log import safe_logger


class LogSender(logging.Handler):
    """Passes records to the user's process, whose logging configuration applies. It only queues them: a finalizer may create a
    record while a message is being encoded."""

    def __init__(self, send: Callable[[LogRecordOut], object]) -> None:
        super().__init__()
        self._send = send
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record).encode(errors="backslashreplace").decode()
            self._send(LogRecordOut(record.name, record.levelno, text))
        except Exception:  # as in the handlers of logging: an invalid record fails no request
            self.handleError(record)


def show(record: LogRecordOut) -> None:
    """Passes a record of the engine's process to the logging of this one."""
    safe_logger(record.logger).log(record.level, "%s", record.text)
