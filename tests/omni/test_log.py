"""Loggers whose handlers raise."""

import logging
from collections.abc import Iterator

import pytest

from omni.utils.log import SafeLogger, safe_logger


class Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(f"cannot show {record.getMessage()!r}")


@pytest.fixture
def log() -> Iterator[SafeLogger]:
    log = safe_logger("omni.tests.log")
    yield log
    log.logger.handlers.clear()
    log.logger.filters.clear()


def test_a_record_names_the_line_that_logs(log: SafeLogger, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("%d of %s", 1, "two")
    log.log(logging.ERROR, "as well")
    try:
        raise ValueError("seen")
    except ValueError:
        log.exception("with the error")
    name = "test_a_record_names_the_line_that_logs"
    assert [(one.funcName, one.getMessage()) for one in caplog.records] == [
        (name, "1 of two"),
        (name, "as well"),
        (name, "with the error"),
    ]
    assert "ValueError: seen" in caplog.text


def test_the_error_of_a_handler_is_printed(log: SafeLogger, capsys: pytest.CaptureFixture[str]) -> None:
    log.logger.addHandler(Failing())
    log.error("this")
    log.exception("that")
    printed = capsys.readouterr().err
    assert "RuntimeError: cannot show 'this'" in printed
    assert "RuntimeError: cannot show 'that'" in printed


def test_the_error_of_a_filter_is_printed(log: SafeLogger, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise KeyError(record.msg)

    log.logger.addFilter(refuse)
    log.error("this")
    assert "KeyError: 'this'" in capsys.readouterr().err


def test_programs_can_have_nothing_printed(
    log: SafeLogger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log.logger.addHandler(Failing())
    log.error("this")
    assert not capsys.readouterr().err


def test_a_keyboard_interrupt_is_no_error_of_a_handler(log: SafeLogger) -> None:
    def interrupt(record: logging.LogRecord) -> bool:
        raise KeyboardInterrupt

    log.logger.addFilter(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.error("this")
