"""A model with a part that fails to close: its other parts are closed, and so are other models. The closing thread survives
errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omni import Omni
from omni.api import client as clients
from omni.api.client import Client
from omni.api.serial_executor import SerialExecutor
from omni.engine import Engine
from omni.errors import StageError
from omni.process.group import EngineGroup
from tests.support.echo_family import echo_model
from tests.support.echo_omni import opened


class Panic(BaseException):
    """As of a library in another language."""


def with_client(path: Path) -> tuple[Omni, Client]:
    before = set(clients._OPEN)
    omni = opened(echo_model(path))
    (client,) = clients._OPEN - before
    return omni, client


def stopped(client: Client) -> bool:
    engine = client.engine
    if isinstance(engine, Engine):
        return engine._stopped.is_set()
    assert isinstance(engine, EngineGroup)
    return all(placed.engine._stopped.is_set() for placed in engine._supervisor.by_place.values())


@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError("stuck"), RuntimeError), (Panic("stuck"), StageError)], ids=["error", "panic"]
)
def test_a_close_that_fails_closes_the_rest(tmp_path: Path, error: BaseException, raised: type[Exception]) -> None:
    omni, client = with_client(tmp_path)

    def close() -> None:
        raise error

    client._downloads.close = close  # type: ignore[method-assign]
    with pytest.raises(raised, match="stuck"):
        omni.close()
    assert stopped(client)
    assert client.queue._closed
    omni.close()


@pytest.mark.parametrize("error", [RuntimeError("stuck"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_at_exit_an_error_of_one_model_leaves_no_other_open(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [with_client(tmp_path / name) for name in ("a", "b", "c")]
    monkeypatch.setattr(clients, "_OPEN", {client for _, client in pairs})

    close = Client.close
    tried: list[Client] = []

    def failing(self: Client) -> None:
        tried.append(self)
        close(self)
        if len(tried) == 1:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(Client, "close", failing)
        clients._close_all()
    assert all(stopped(client) for _, client in pairs)
    assert [record.getMessage() for record in caplog.records] == ["a model was not closed as it should be"]


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [ValueError("x"), Panic("x"), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_the_executor_continues_after_any_error(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    executor = SerialExecutor()
    executor.start()
    executor.submit(raising(error))
    executor.submit(executor.end)
    assert executor._ended.wait(10), "its thread ended without saying so"
    executor.join()
    assert [record.getMessage() for record in caplog.records] == ["work of the executor failed"]
    assert executor.call(lambda: 3) == 3, "whoever is left does it"


def test_work_queued_beside_the_end_runs_after_a_panic(caplog: pytest.LogCaptureFixture) -> None:
    """Both are in the queue as the thread looks for the last time."""
    executor, done = SerialExecutor(), []
    for work in (executor.end, raising(Panic()), lambda: done.append(1)):
        executor.soon(work)
    executor.start()
    executor.join()
    executor._thread.join(10)
    assert done == [1]
    assert len(caplog.records) == 1
