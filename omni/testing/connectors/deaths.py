"""Checks of an end whose process ends while payloads are under way."""

import time
from collections.abc import Callable

from omni.testing.connectors import promises
from omni.testing.connectors.bench import SOME_TURNS, ConnectorBench
from omni.testing.connectors.child import TURN_SECONDS
from omni.testing.connectors.consumer import Consumer
from omni.testing.connectors.endings import in_all_states
from omni.testing.connectors.ends import RemoteEnd
from omni.testing.connectors.messages import (
    CloseReceiver,
    Do,
    Expect,
    OpenGate,
    OpenReceiver,
    OpenSender,
    SendPayload,
    typed,
)
from omni.testing.connectors.promises import calling, require

CLOSE_SECONDS = 30.0
"""Seconds that a receiver may be busy after its sender's process has ended."""


def consumer_killed(bench: ConnectorBench, end: RemoteEnd, next_end: RemoteEnd) -> None:
    """The consumer's process ends. Catches payloads that `Sender.peer_lost` does not free, memory that it loses, and a
    sender that takes no new receiver."""
    edge = bench.open()
    sents = in_all_states(bench, edge)
    end.kill()
    with calling("Sender.peer_lost"):
        bench.producer.senders[edge].peer_lost()
    for sent in sents:
        if not sent.finished:
            bench.abort(sent)
    bench.freed(*sents, promise="payloads of a receiver whose process has ended are freed (Sender.peer_lost)")
    bench.end = next_end
    bench.connect(edge)
    for _ in range(2):
        bench.through(edge, bench.small(), bench.full())
    bench.settle()


def sender_killed(bench: ConnectorBench, end: RemoteEnd) -> None:
    """The producer's process ends; the consumer is in the calling thread. Catches a receiver that hangs or stays busy, and memory
    that is freed while it is read."""
    edge, pool = bench.new_gate(), bench.pool_bytes
    consumer = Consumer(bench.connector, bench.consumer_device)
    end.do(OpenSender(edge, bench.edge_to()))
    _until(lambda: edge in end.addresses, end, consumer, "a sender is opened in another process (Connector.sender)")
    consumer.do(OpenReceiver(edge, bench.edge_to(), typed(end.addresses[edge])))
    held, released, unasked = (bench.bytes_of(pool // 4) for _ in range(3))
    midway, unready = bench.bytes_of(4 * pool), bench.small()
    for meta in (held, released, unasked, midway, unready):
        consumer.do(Expect(edge, meta, poll=meta is not unasked))
        end.do(SendPayload(edge, meta, ready=meta is not unready))
    for meta in (held, released):
        state = consumer.taken[meta.number].state
        consumer.do(Do("read", meta.number))
        arrived = "a payload of another process arrives"
        _until(lambda state=state: state.reads > 0, end, consumer, arrived, midway.number)  # type: ignore[misc]
    gate = bench.new_gate()
    consumer.do(Do("release", released.number, gate))
    end.kill()
    for _ in range(SOME_TURNS):
        consumer.turn()
        end.rest()
    consumer.do(Do("read", held.number))
    state = consumer.taken[held.number].state
    _until(
        lambda: state.reads > 1,
        None,
        consumer,
        "a payload that arrived can be read after the sender's process has ended",
    )
    consumer.do(Do("release", held.number))
    consumer.do(OpenGate(gate))
    for meta in (unasked, midway, unready):
        consumer.do(Do("abort", meta.number))
    deadline = time.monotonic() + CLOSE_SECONDS
    while consumer.busy:
        idle = f"a receiver whose sender's process has ended is idle within {CLOSE_SECONDS:.0f} s (Receiver.busy)"
        require(time.monotonic() < deadline, idle)
        consumer.turn()
        time.sleep(TURN_SECONDS)
    consumer.do(CloseReceiver(edge))


def _until(
    ask: Callable[[], bool], end: RemoteEnd | None, consumer: Consumer, promise: str, midway: int | None = None
) -> None:
    """Carries pieces from the other process. midway: a payload of which only the first piece comes."""
    deadline = time.monotonic() + promises.PATIENCE_SECONDS
    while not ask():
        require(time.monotonic() < deadline, promise)
        consumer.turn()
        if end is None:
            continue
        if not end.turn():
            end.rest()
        for piece in end.pieces:
            if piece.number != midway or consumer.taken[piece.number].pending is None:
                consumer.do(piece)
        end.pieces.clear()
