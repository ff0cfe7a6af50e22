"""The messages between two engines."""

import pytest

from omni.engine.peers import AcquiredOut, LinkClosed
from omni.ipc import Channel
from omni.process.link import ChannelLink


def links() -> tuple[ChannelLink, ChannelLink]:
    first, second = (ChannelLink(end, lambda descriptor: None) for end in Channel.pair())
    return first, second


def test_messages_arrive_in_order_then_the_end():
    ours, theirs = links()
    sent = [AcquiredOut(f"r{number}", "a->b") for number in range(100)]
    for message in sent[:50]:
        ours.send(message)
    ours.flush()
    for message in sent[50:]:
        ours.send(message)
    ours.flush()
    taken = list(theirs.take())
    assert len(taken) == 50, "the second packet waits until the first is taken"
    ours.flush()
    ours.close()
    taken += theirs.take()
    assert taken == sent
    with pytest.raises(LinkClosed):
        theirs.take()
    theirs.close()


def test_a_turn_ends_though_the_other_engine_sends_on_and_on(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = links()
    receive, packets = theirs._channel.receive, 0

    def receive_and_send(**options: bool) -> object:
        nonlocal packets
        packets += 1
        assert packets < 100, "it takes as long as there is something"
        received = receive(**options)
        ours.send(AcquiredOut("r", "a->b"))
        ours.flush()
        return received

    monkeypatch.setattr(theirs._channel, "receive", receive_and_send)
    assert [len(theirs.take()) for _ in range(3)] == [0, 1, 1]
    ours.close()
    theirs.close()
