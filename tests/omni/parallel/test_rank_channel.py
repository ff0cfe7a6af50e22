"""Messages from rank 0 of a stage to the others."""

import select
import socket

import pytest

from omni.errors import LostRankError
from omni.ipc import Channel
from omni.parallel.channel import MessageCounter, ReceivingChannel, SendingChannel


def opened(followers: int = 1, seconds: float = 60.0) -> tuple[SendingChannel, list[ReceivingChannel]]:
    pairs: list[tuple[socket.socket, socket.socket]] = [Channel.pair() for _ in range(followers)]
    ends = {rank: first for rank, (first, _) in enumerate(pairs, 1)}
    sender = SendingChannel(ends, {rank: MessageCounter() for rank in ends}, seconds)
    return sender, [ReceivingChannel(second, MessageCounter()) for _, second in pairs]


def taken(channel: ReceivingChannel) -> list[bytes]:
    """All messages that have arrived."""
    return [message for message in iter(channel.take, None) if message is not None]


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
        assert taken(receiver) == messages
        assert receiver.take() is None
        assert not readable(receiver)
    assert (sender.descriptor, sender.take()) == (None, None)
    for close in (sender.close, *(receiver.close for receiver in receivers)):
        close()
        close()


def test_messages_of_two_stages_are_taken_in_the_order_of_sending() -> None:
    """Whichever channel is asked first."""
    sending, receiving = MessageCounter(), MessageCounter()
    (one, one_end), (other, other_end) = Channel.pair(), Channel.pair()
    senders = [SendingChannel({1: end}, {1: sending}, 60.0) for end in (one, other)]
    receivers = [ReceivingChannel(end, receiving) for end in (one_end, other_end)]
    order = [0, 1, 1, 0, 1, 0, 0]
    for number, stage in enumerate(order):
        senders[stage].send(bytes([number]))
    got: list[bytes] = []
    while len(got) < len(order):
        # Asked in an order of its own, each gives its message or none.
        asked = [receiver.take() for receiver in reversed(receivers)]
        got += [message for message in asked if message is not None]
        assert len(got) > 0
    assert got == [bytes([number]) for number in range(len(order))]
    for sender, receiver in zip(senders, receivers, strict=True):
        sender.close()
        receiver.close()


def test_a_closed_rank_0_is_no_lost_one() -> None:
    sender, (receiver,) = opened()
    sender.send(b"last")
    sender.close()
    assert receiver.take() == b"last"
    assert receiver.take() is None
    receiver.close()


def test_a_rank_0_that_has_ended_is_lost_after_its_last_message() -> None:
    first, second = Channel.pair()
    sender, receiver = (
        SendingChannel({1: first}, {1: MessageCounter()}, 60.0),
        ReceivingChannel(second, MessageCounter()),
    )
    sender.send(b"last")
    first.close()  # as the end of its process does
    assert readable(receiver)
    assert receiver.take() == b"last"
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
    assert receivers[0].take() == b""
    receivers[0].close()


def test_a_rank_that_takes_no_messages_is_lost() -> None:
    sender, (receiver,) = opened(seconds=0.25)

    def send_all() -> None:
        for _ in range(1000):
            sender.send(bytes(60_000))

    with pytest.raises(LostRankError, match=r"rank 1 has taken no message for 0\.25 s"):
        send_all()
    receiver.close()
    sender.close()
