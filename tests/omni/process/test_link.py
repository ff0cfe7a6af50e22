"""The messages between two engines."""

import msgspec
import pytest

from omni.engine.peer_messages import AcquiredOut, LinkClosed, LostPiece, PieceOut
from omni.ipc import Channel, Typed
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


class Strict(msgspec.Struct, frozen=True):
    """A piece whose author has its field of another type."""

    size: int


def test_a_piece_that_cannot_be_decoded_loses_that_piece_alone():
    ours, theirs = links()
    for index, size in enumerate((0, "one", 2)):
        ours.send(PieceOut("r", 1, "a->b", index, Typed(Strict(size))))  # type: ignore[arg-type]
    ours.flush()
    first, lost, last = theirs.take()
    assert isinstance(first, PieceOut)
    assert isinstance(last, PieceOut)
    assert [first.piece.value, last.piece.value] == [Strict(0), Strict(2)]
    assert isinstance(lost, LostPiece)
    assert (lost.request_id, lost.number, lost.edge) == ("r", 1, "a->b")
    assert lost.problem.startswith(
        f"a {__name__}.Strict cannot be received: ValidationError: Expected `int`, got `str`"
    )
    ours.close()
    theirs.close()


def test_a_turn_ends_while_the_other_engine_keeps_sending(monkeypatch: pytest.MonkeyPatch):
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
