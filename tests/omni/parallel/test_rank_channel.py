"""Messages from rank 0 of a stage to the others."""

import select
import socket

import pytest

from omni.errors import LostRankError
from omni.ipc import Channel
from omni.parallel.channel import ReceivingChannel, SendingChannel


def opened(followers: int = 1, seconds: float = 60.0) -> tuple[SendingChannel, list[ReceivingChannel]]:
    pairs: list[tuple[socket.socket, socket.socket]] = [Channel.pair() for _ in range(followers)]
    sender = SendingChannel({rank: first for rank, (first, _) in enumerate(pairs, 1)}, seconds)
    return sender, [ReceivingChannel(second) for _, second in pairs]


def readable(channel: ReceivingChannel) -> bool:
    poll = select.poll()
    poll.register(channel.descriptor, select.POLLIN)
    return bool(poll.poll(0))


def test_messages_come_to_every_rank_in_order() -> None:
    sender, receivers = opened(2)
    assert not readable(receivers[0])
    messages = [b"", b"one", bytes(3 * 2**20)]
    for message in messages:
        sender.send(message)
    for receiver in receivers:
        assert readable(receiver)
        assert receiver.take() == messages
        assert receiver.take() == []
        assert not readable(receiver)
    assert (sender.descriptor, sender.take()) == (None, ())
    for close in (sender.close, *(receiver.close for receiver in receivers)):
        close()
        close()


def test_a_closed_rank_0_is_no_lost_one() -> None:
    sender, (receiver,) = opened()
    sender.send(b"last")
    sender.close()
    assert receiver.take() == [b"last"]
    assert receiver.take() == []
    receiver.close()


def test_a_rank_0_that_has_ended_is_lost_after_its_last_message() -> None:
    first, second = Channel.pair()
    sender, receiver = SendingChannel({1: first}, 60.0), ReceivingChannel(second)
    sender.send(b"last")
    first.close()  # as the end of its process does
    assert readable(receiver)
    assert receiver.take() == [b"last"]
    assert readable(receiver)
    with pytest.raises(LostRankError, match="rank 0 has ended"):
        receiver.take()
    receiver.close()


def test_another_rank_that_has_ended_is_lost() -> None:
    sender, receivers = opened(2)
    receivers[1].close()
    with pytest.raises(LostRankError, match="rank 2 has ended"):
        sender.send(b"")
    sender.close()
    assert receivers[0].take() == [b""]
    receivers[0].close()


def test_a_rank_that_takes_no_messages_is_lost() -> None:
    sender, (receiver,) = opened(seconds=1.0)

    def send_all() -> None:
        for _ in range(1000):
            sender.send(bytes(60_000))

    with pytest.raises(LostRankError, match="rank 1 has taken no message for 1 s"):
        send_all()
    receiver.close()
    sender.close()
