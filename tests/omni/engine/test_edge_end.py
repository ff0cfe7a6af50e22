"""The arguments of a connector's ends: the edge, the device, the places of both ends."""

import msgspec

from omni.connector import EdgeEnd, Receiver, Sender
from omni.device import CpuDevice
from omni.engine.peers import EngineEdges, OpenEdge
from omni.pipeline import Edge
from omni_local.connector import LocalConnector, LocalSender


class Address(msgspec.Struct, frozen=True):
    """An empty address."""


class Recording(LocalConnector):
    def __init__(self) -> None:
        self.ends: list[tuple[str, EdgeEnd]] = []

    def sender(self, end: EdgeEnd) -> Sender:
        self.ends.append(("sender", end))
        sender = LocalSender()
        sender.address = Address()  # type: ignore[assignment]
        return sender

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        self.ends.append(("receiver", end))
        return super().receiver(end, address)


def test_both_ends_know_edge_device_and_places() -> None:
    connector, device = Recording(), CpuDevice()
    edge = Edge(producer="a", consumer="b", pool_bytes=2**20)
    edges = [OpenEdge(edge, connector, "cpu", "cpu"), OpenEdge(edge, connector, "cpu", "cpu/2")]
    ends = EngineEdges("cpu", edges, lambda opened: EdgeEnd(opened.name, device, opened.pool_bytes))
    same = EdgeEnd("a->b", device, 2**20, producer="cpu", consumer="cpu")
    assert connector.ends == [
        ("sender", same),
        ("receiver", same),
        ("sender", EdgeEnd("a->b", device, 2**20, producer="cpu", consumer="cpu/2")),
    ]
    ends.close()
