"""A connector whose ends return None fails the request on its edge, by name, and no other."""

import pytest

from omni.connector.base import Receiver, Ref, Sender
from omni.device import Event
from omni.payload import Payload
from omni_local.connector import LocalConnector, LocalReceiver, LocalRef, LocalSender
from tests.support.fake_graph import FakeGraph, lent

EDGE = "writer->speaker"


class NoneConnector(LocalConnector):
    """method: the one that returns None."""

    def __init__(self, method: str) -> None:
        self.method = method

    def sender(self, end: object) -> Sender:
        return NoneSender(self.method)

    def receiver(self, end: object, address: object) -> Receiver:
        return NoneReceiver(self.method)


class NoneSender(LocalSender):
    def __init__(self, method: str) -> None:
        self._method = method

    def send(self, payload: Payload, ready: Event) -> Ref:
        return None if self._method == "send" else NoneRef(payload, ready, self._method)  # type: ignore[return-value]


class NoneRef(LocalRef):
    def __init__(self, payload: Payload, ready: Event, method: str) -> None:
        super().__init__(payload, ready)
        self._method = method

    def pieces(self):
        return None if self._method == "pieces" else super().pieces()


class NoneReceiver(LocalReceiver):
    def __init__(self, method: str) -> None:
        self._method = method

    def receive(self, piece):
        return None if self._method == "receive" else super().receive(piece)


@pytest.mark.parametrize("method", ["send", "pieces", "receive"])
def test_a_connector_that_returns_none_fails_its_request_alone(method: str) -> None:
    graph = FakeGraph(connectors={EDGE: NoneConnector(method)})  # type: ignore[dict-item]
    bad, good = graph.submit("bad", "text", "audio"), graph.submit("good", "text")
    graph.writer.produce("bad", lent(1))
    graph.settle()
    assert f"stage '{EDGE}' failed while " in str(bad.failure)
    assert f"{method} returned None: return a" in str(bad.failure)
    assert __file__ in str(bad.failure)
    assert not good.over
