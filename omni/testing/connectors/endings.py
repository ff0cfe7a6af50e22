"""Checks of releases, aborts and discards, of slow consumers, of several edges, and of `close`."""

from omni.testing.connectors.bench import ConnectorBench
from omni.testing.connectors.consumer import MOST_KEPT
from omni.testing.connectors.producer import Sent
from omni.testing.connectors.promises import require


def intact_until_the_release_event(bench: ConnectorBench) -> None:
    """Catches memory that is reused before the event that `Pending.release` got, and a call that waits for it."""
    edge, pool = bench.open(), bench.pool_bytes
    for meta in (bench.small(), bench.bytes_of(pool // 4), bench.full()):
        sent = bench.send(edge, meta)
        bench.take(sent)
        bench.idle()
        if bench.local:
            require(not sent.ref.released, "an unreleased payload is not released (Ref.released)")
            require(not sent.ref.freed, "an unreleased payload is not free (Ref.freed)")
        gate = bench.new_gate()
        bench.do("release", sent, gate=gate)
        others = [bench.send(edge, bench.bytes_of(pool // 4)) for _ in range(8)]
        bench.idle()
        if bench.local:
            require(sent.ref.released, "a released payload is released before the release event (Ref.released)")
            require(not sent.ref.freed, "a released payload is not free before the release event (Ref.freed)")
        bench.read(sent)
        bench.open_gate(gate)
        bench.freed(sent, promise="a released payload is free after the release event (Ref.freed)")
        bench.take(*others)
        bench.release(*others)


def kept_until_the_release_event(bench: ConnectorBench) -> None:
    """As a consumer whose launched phases still read, but which keeps no reference: catches memory that the receiver drops
    before the event that `Pending.release` got."""
    edge = bench.open()
    for meta in (bench.small(), bench.bytes_of(bench.pool_bytes // 4), bench.full()):
        sent, gate = bench.send(edge, meta), bench.new_gate()
        bench.take(sent)
        bench.do("drop", sent, gate=gate)
        bench.idle()
        bench.open_gate(gate)
        bench.freed(sent, promise="a released payload is free after the release event (Ref.freed)")


def dropped_after_the_release_event(bench: ConnectorBench) -> None:
    """Catches a receiver that keeps the memory of ended payloads, also one that has memory to drop and is not `busy`."""
    edge = bench.open()
    for _ in range(MOST_KEPT + 8):
        sent, gate = bench.send(edge, bench.bytes_of(256)), bench.new_gate()
        bench.arrive(sent)
        bench.do("drop", sent, gate=gate)
        bench.open_gate(gate)
        bench.freed(sent, promise="a released payload is free after the release event (Ref.freed)")


def released_in_any_order(bench: ConnectorBench) -> None:
    """Catches a release that frees another payload, or that waits for one."""
    edge, pool = bench.open(), bench.pool_bytes
    held = [bench.send(edge, bench.bytes_of(pool // 8)) for _ in range(6)]
    bench.take(*held)
    for place in (3, 4, 0, 2, 1, 0):
        gone = held.pop(place)
        bench.do("release", gone)
        bench.freed(gone, promise="a payload is freed in any order of releases (Pending.release, Ref.freed)")
        bench.through(edge, bench.bytes_of(pool // 8))
        bench.read(*held)


def released_twice(bench: ConnectorBench) -> None:
    """The second release has an event that is done. Catches one that replaces the first, or gives memory back twice."""
    edge, pool = bench.open(), bench.pool_bytes
    for meta in (bench.small(), bench.bytes_of(pool // 4), bench.full()):
        sent = bench.send(edge, meta)
        bench.take(sent)
        gate, done = bench.new_gate(), bench.new_gate()
        bench.open_gate(done)
        bench.do("release", sent, gate=gate)
        bench.do("release", sent, gate=done)
        others = [bench.send(edge, bench.bytes_of(pool // 4)) for _ in range(8)]
        bench.idle()
        freed = bench.local and sent.ref.freed
        require(not freed, "a second release does not free memory that is still being read (Pending.release)")
        bench.read(sent)
        bench.open_gate(gate)
        bench.freed(sent, promise="a payload that is released twice is free after the first event (Ref.freed)")
        bench.do("release", sent, gate=done)
        bench.take(*others)
        bench.read(*reversed(others))
        bench.release(*others)


def aborted_before_sent(bench: ConnectorBench) -> None:
    """Catches a payload that an abort does not free, also one that never becomes ready."""
    edge = bench.open()
    for make in (bench.small, bench.full):
        for turns in (0, 10):
            sent = bench.send(edge, make(), bench.gate())
            if turns:
                bench.idle(turns)
            bench.abort(sent)
            bench.abort(sent)
            if not sent.aborted:  # the receiver has it
                bench.do("abort", sent)
            bench.freed(sent, promise="an aborted payload is freed, also one that never became ready (Ref.abort)")
            bench.idle()
            require(not bench.state(sent).ready, "an aborted payload does not arrive (Ref.abort)")


def aborted_after_sent(bench: ConnectorBench) -> None:
    """Catches an abort that removes a payload from its receiver."""
    edge = bench.open()
    for meta in (bench.small(), bench.bytes_of(bench.pool_bytes // 4)):
        sent = bench.send(edge, meta)
        bench.until(lambda sent=sent: sent.finished, "a payload that is ready is sent (Ref.sent)")  # type: ignore[misc]
        bench.abort(sent)
        bench.take(sent)
        bench.abort(sent)
        bench.read(sent)
        bench.release(sent)
        bench.abort(sent)


def aborted_midway(bench: ConnectorBench) -> None:
    """The producer gives up a payload of which the receiver has some pieces."""
    edge = bench.open()
    for poll in (True, False):
        for let in (0, 1, 2):
            sent = _begun(bench, edge, poll, let)
            bench.abort(sent)
            bench.let_go(sent)
            bench.do("abort", sent)
            bench.do("abort", sent)
            bench.freed(sent, promise="a payload that both ends give up midway is freed (Ref.abort, Pending.abort)")


def abandoned(bench: ConnectorBench) -> None:
    """The consumer gives up a payload before all its pieces came, and discards the rest. Catches pieces whose memory is
    lost, and a payload that is not sent to its end."""
    edge = bench.open()
    for producer_too in (False, True):
        for let in (0, 1, 2):
            sent = _begun(bench, edge, True, let)
            bench.do("abort", sent)
            bench.idle(5)
            if producer_too:
                bench.abort(sent)
            bench.let_go(sent)
            bench.freed(
                sent, promise="a payload is freed whose consumer gave it up midway (Pending.abort, Receiver.discard)"
            )
    for meta in (bench.small(), bench.bytes_of(bench.pool_bytes // 4)):
        sent = bench.send(edge, meta)
        bench.take(sent)
        bench.do("abort", sent)
        bench.freed(sent, promise="a payload that arrived and was aborted is freed (Pending.abort)")


def discarded(bench: ConnectorBench) -> None:
    """No piece reaches a `Pending`. Catches pieces whose memory `Receiver.discard` does not give back."""
    edge = bench.open()
    metas = (bench.small(), bench.bytes_of(bench.pool_bytes // 4), bench.full(), bench.meta())
    for meta in metas:
        sent = bench.send(edge, meta, poll=False)
        bench.discard(sent)
        bench.freed(sent, promise="a payload whose pieces are discarded is sent and freed (Receiver.discard)")


def aborted_after_release(bench: ConnectorBench) -> None:
    """Catches an abort that frees memory that is still being read."""
    edge, pool = bench.open(), bench.pool_bytes
    for meta in (bench.small(), bench.bytes_of(pool // 4)):
        sent = bench.send(edge, meta)
        bench.take(sent)
        gate = bench.new_gate()
        bench.do("release", sent, gate=gate)
        bench.do("abort", sent)
        bench.do("abort", sent)
        bench.abort(sent)
        others = [bench.send(edge, bench.bytes_of(pool // 4)) for _ in range(8)]
        bench.idle()
        freed = bench.local and sent.ref.freed
        require(not freed, "an abort after the release does not free memory that is still being read (Pending.abort)")
        bench.read(sent)
        bench.open_gate(gate)
        bench.take(*others)
        bench.release(*others)
        bench.freed(sent, promise="a payload released and then aborted is free after the release event (Ref.freed)")


def slow_consumers(bench: ConnectorBench) -> None:
    """Consumers hold payloads of several pools: some poll theirs and keep them, others never poll. Catches a pool that does not
    drain."""
    edge, pool = bench.open(), bench.pool_bytes
    for polls in (True, False):
        sizes = [pool // 2] * 6 + [pool + 1, 64, 1] + [pool // 16] * 24
        slow = [bench.send(edge, bench.bytes_of(size), poll=polls) for size in sizes]
        slow += [bench.send(edge, bench.rows_of(pool // 2), poll=polls) for _ in range(3)]
        if polls:
            bench.arrive(*slow)
        for meta in (bench.small(), bench.full()):
            quick = bench.send(edge, meta)
            held = "received and not released" if polls else "not polled"
            promise = f"payloads that a slow consumer holds ({held}) never keep others from arriving"
            bench.until(lambda quick=quick: bench.state(quick).ready, promise)  # type: ignore[misc]
            bench.read(quick)
            bench.release(quick)
        bench.do("poll", *slow)
        bench.take(*slow)
        bench.release(*reversed(slow))


def several_edges(bench: ConnectorBench) -> None:
    """Catches ends of one connector that share state that they must not share, also ends of one edge to two consumers."""
    edges = [bench.open("one"), bench.open("two"), bench.open("two")]
    sents = [bench.send(edge, meta) for _ in range(4) for edge in edges for meta in (bench.small(), bench.full())]
    bench.arrive(*sents)
    bench.read(*reversed(sents))
    bench.release(*sents)
    held = [bench.send(edge, bench.bytes_of(bench.pool_bytes // 3)) for edge in edges[1:]]
    bench.take(*held)
    bench.close(edges[0])
    bench.read(*held)
    bench.through(edges[1], bench.small(), bench.full())
    bench.release(*held)


def closed_under_way(bench: ConnectorBench) -> None:
    """Catches a `close` that fails while payloads are in any state, or a second time, or before the other end's."""
    for sender_first in (False, True):
        edge = bench.open()
        in_all_states(bench, edge)
        bench.close(edge, sender_first)
        after = bench.open()
        bench.through(after, bench.small(), bench.full())
        bench.close(after)


def in_all_states(bench: ConnectorBench, edge: int) -> list[Sent]:
    """Payloads that are not ready, midway, arrived, read, aborted, and released before the event."""
    unready = bench.send(edge, bench.small(), bench.gate())
    arrived, read, aborted, released = (bench.send(edge, bench.bytes_of(bench.pool_bytes // 8)) for _ in range(4))
    bench.arrive(arrived, aborted)
    bench.take(read, released)
    bench.do("abort", aborted)
    bench.do("release", released, gate=bench.new_gate())
    midway = _begun(bench, edge, True, 1)
    unasked = bench.send(edge, bench.bytes_of(bench.pool_bytes // 8), poll=False)
    bench.idle()
    return [unready, midway, unasked, arrived, read, aborted, released]


def nothing_leaks(bench: ConnectorBench) -> None:
    """Catches memory of the pool that is lost, a little at each ending of a payload."""
    edge, pool = bench.open(), bench.pool_bytes
    for _ in range(8):
        discarded, aborted, taken = (bench.send(edge, bench.bytes_of(pool // 6)) for _ in range(3))
        bench.discard(discarded)
        bench.take(taken)
        bench.arrive(aborted)
        bench.do("abort", aborted)
        midway = _begun(bench, edge, True, 1)
        bench.abort(midway)
        bench.do("abort", midway)
        bench.let_go(midway)
        bench.release(taken)
        bench.freed(discarded, aborted, midway, promise="a payload that is over at both ends is freed")
        bench.through(edge, bench.full())


def _begun(bench: ConnectorBench, edge: int, poll: bool, let: int) -> Sent:
    """A payload larger than the pool, of whose pieces the receiver gets the first `let`. The others are kept back."""
    sent = bench.send(edge, bench.bytes_of(4 * bench.pool_bytes), poll=poll)
    bench.hold(sent)
    for _ in range(let):
        bench.until(lambda: bool(bench.held(sent)) or sent.finished, "a payload that is ready is sent (Ref.pieces)")
        bench.let_go(sent, min(bench.held(sent), 1))
    bench.idle(5)
    return sent
