"""What a host edge tells the connector inside: each reference once, and nothing of its own."""

from omni.connector import Reach, Ref
from omni.device import COMPLETED, Event
from omni.device.cpu import CpuDevice
from omni.engine.host import HostConnector, HostRef
from omni_local.connector import LocalConnector
from tests.support.fake_graph import lent


class Told(LocalConnector):
    """calls: what became of references."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def release(self, ref: Ref, after: Event) -> None:
        self.calls.append("release")
        super().release(ref, after)

    def abort(self, ref: Ref, reason: str) -> None:
        self.calls.append("abort")
        super().abort(ref, reason)


def reference() -> tuple[Told, HostRef]:
    inner = Told()
    ref = inner.send(lent(0), COMPLETED, CpuDevice().stream("producer"))
    return inner, HostRef(ref, inner)


def test_a_producer_s_memory_is_let_go_of_once():
    inner, ref = reference()
    ref.release(COMPLETED)
    ref.release(COMPLETED)
    ref.abort("nobody wants it", COMPLETED)
    assert inner.calls == ["release"]
    assert ref.freed


def test_what_nobody_read_is_given_up_once():
    inner, ref = reference()
    ref.abort("nobody wants it", COMPLETED)
    ref.abort("nor now", COMPLETED)
    ref.release(COMPLETED)
    assert inner.calls == ["abort"]


def test_it_reaches_as_far_as_the_connector_inside():
    inner = LocalConnector()
    assert HostConnector(inner, CpuDevice(), "edge").reach is inner.reach
    assert isinstance(inner.reach, Reach)
