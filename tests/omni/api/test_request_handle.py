"""One answer to a request."""

from omni.api.request import Event, RequestHandle
from omni.engine import RequestFailed
from omni.errors import OmniError


def test_an_answer_is_cancelled_once() -> None:
    events, finished = list[Event](), list[RequestHandle]()
    handle = RequestHandle("a", lambda at, event: events.append(event), finished.append)
    error = OmniError("given up")
    handle.cancel(error)
    assert handle.finished
    handle.cancel(OmniError("given up again"))
    handle.sink(RequestFailed(OmniError("too late")))
    assert events == [RequestFailed(error)]
    assert finished == [handle]
