"""Checks of payloads that arrive, in any kind, size and order, and of the memory that they are read from."""

from typing import NamedTuple

from torch import Tensor

from omni.device import COMPLETED
from omni.payload import PageSlice
from omni.testing.connectors.bench import ConnectorBench
from omni.testing.connectors.ends import LocalEnd
from omni.testing.connectors.host_memory import HostMemory, bytes_in
from omni.testing.connectors.producer import Sent
from omni.testing.connectors.promises import Gate, calling, require
from omni.testing.connectors.values import DTYPES, Meta, TensorOf, WatchedSlice


def every_dtype_and_layout(bench: ConnectorBench) -> None:
    """Catches lost, mixed up or changed values, shapes, dtypes and names."""
    edge = bench.open()
    bench.through(edge, *every_kind(bench))


def every_kind(bench: ConnectorBench) -> list[Meta]:
    layouts = [
        TensorOf(name=f"{dtype}-{layout}", dtype=dtype, shape=(5, 2 if layout == "overlapping" else 4), layout=layout)
        for dtype in ("float32", "bfloat16", "int64", "bool", "uint8", "complex64", "float8_e4m3fn")
        for layout in ("strided", "transposed", "expanded", "overlapping")
    ]
    pages = [
        TensorOf(name=f"{dtype}-{rows}-{width}", dtype=dtype, shape=(rows, width), layout="pages")
        for dtype in ("float32", "bfloat16", "float16")
        for rows, width in ((1, 1), (37, 3), (100, 64), (0, 8))
    ]
    return [
        bench.meta(*(TensorOf(name=dtype, dtype=dtype, shape=(5, 7)) for dtype in DTYPES)),
        bench.meta(*(TensorOf(name=dtype, dtype=dtype, shape=()) for dtype in DTYPES)),
        bench.meta(*(TensorOf(name=dtype, dtype=dtype, shape=(0, 3)) for dtype in DTYPES)),
        bench.meta(*layouts),
        bench.meta(*pages),
        bench.meta(
            TensorOf(name="a", shape=(3, 0)), TensorOf(name="b", shape=(2, 3, 4, 5)), TensorOf(name="", shape=(1,))
        ),
        bench.meta(),
        bench.meta(text="x" * 100_000),
        bench.meta(TensorOf(), text="y" * 100_000),
    ]


def every_size(bench: ConnectorBench) -> None:
    """Catches errors at the boundaries of slots and of the pool, and errors with payloads larger than the free part of the pool."""
    edge, pool = bench.open(), bench.pool_bytes
    for size in (1, 2, 63, 64, 65, 4097, 2**16 - 1, 2**16 + 1, pool - 1, pool, pool + 1, 2 * pool, bench.largest_bytes):
        bench.through(edge, bench.bytes_of(size))
    rows = TensorOf(name="rows", dtype="bfloat16", shape=(3, pool // 2 + 5))
    strided = TensorOf(name="strided", shape=(7, pool // 16), layout="strided")
    many = [TensorOf(name=f"t{index}", shape=(index,)) for index in range(200)]
    bench.through(edge, bench.meta(rows, strided), bench.meta(*many), bench.rows_of(2 * pool))
    wide = bench.meta(TensorOf(shape=(5, pool // 4 + 3), layout="pages"))
    bench.through(edge, wide)


def in_order(bench: ConnectorBench) -> None:
    """Catches payloads that are mixed up, while the pieces of many come in turn."""
    edge, pool = bench.open(), bench.pool_bytes
    sizes = (5, pool // 3, 64, pool + 7, 1, pool // 2, 4096, 0)
    sents = [bench.send(edge, bench.bytes_of(size)) for _ in range(3) for size in sizes]
    sents += [bench.send(edge, bench.small()) for _ in range(8)]
    bench.arrive(*sents)
    bench.read(*reversed(sents))
    bench.release(*sents)


def not_before_ready(bench: ConnectorBench) -> None:
    """Catches an early read of the payload, an early `Received.ready`, and a call that waits for the event."""
    edge = bench.open()
    for meta in (bench.small(), bench.full()):
        gate = bench.gate()
        sent = bench.send(edge, meta, gate)
        bench.idle()
        require(
            not bench.state(sent).ready,
            "nothing is ready before the payload's `ready` (Received.ready): copy it only once that is done "
            "(CopiedRef.may_copy), or pass the event on",
        )
        bench.fill(sent)
        gate.open = True
        bench.take(sent)
        bench.release(sent)


def same_memory(bench: ConnectorBench) -> None:
    """Catches a false claim of `Connector` about copies: a copy where it claims none, or none where it claims one."""
    if not isinstance(bench.end, LocalEnd) or not bench.local:
        return
    edge = bench.open()
    sent = bench.send(edge, bench.small())
    bench.take(sent)
    received = bench.end.consumer.taken[sent.number].received
    assert received is not None
    for name, tensor in sent.payload.tensors.items():
        other = received.payload.tensors[name]
        slices = isinstance(tensor, PageSlice)
        require(
            other is tensor if slices else isinstance(other, Tensor), "within a process, page slices travel as they are"
        )
        same = _address(other) == _address(tensor)
        claim = "Connector.raw_device_tensors, Reach.PROCESS"
        if bench.connector.raw_device_tensors:
            require(same, f"a tensor travels within a process without a copy ({claim})")
        else:
            require(not same, f"a connector that passes the same memory says so ({claim})")
    bench.release(sent)


def through_the_host(bench: ConnectorBench) -> None:
    """Catches a false `raw_device_tensors` beyond a process: host memory of the payload's size, or its bytes in pieces."""
    if not isinstance(bench.end, LocalEnd) or bench.local or not bench.connector.raw_device_tensors:
        return
    small, large = (_by_the_host(bench, pool) for pool in (bench.pool_bytes, 4 * bench.pool_bytes))
    remedy = "set it to False, or copy from device to device"
    claim = f"a connector that copies through the host says so (Connector.raw_device_tensors): of {large.payload} bytes"
    require(large.carried < large.payload, f"{claim} its pieces carry {large.carried}; {remedy}")
    # Data of constant size, such as flags, may be in host memory.
    grown = f"{claim} it keeps {large.kept - small.kept} more in host memory than of {small.payload}; {remedy}"
    require(large.kept - small.kept < large.payload - small.payload, grown)


class _ByTheHost(NamedTuple):
    """Bytes of one payload. kept: host memory that its edge allocated. carried: bytes in its pieces."""

    payload: int
    kept: int
    carried: int


def _by_the_host(bench: ConnectorBench, pool_bytes: int) -> _ByTheHost:
    nbytes = pool_bytes // 2
    with HostMemory(bench.producer.device, bench.consumer_device) as host:
        edge = bench.open(pool_bytes=pool_bytes)
        sent = bench.send(edge, bench.bytes_of(nbytes))
        bench.hold(sent)
        bench.until(lambda: sent.finished, "a payload that fits into the pool is sent")
        carried = sum(bytes_in(piece) for piece in bench.held_pieces(sent))
        bench.let_go(sent)
        bench.take(sent)
        bench.release(sent)
    return _ByTheHost(nbytes, host.nbytes, carried)


def _address(tensor: Tensor | PageSlice) -> int:
    return (tensor.pages if isinstance(tensor, PageSlice) else tensor).data_ptr()


def claims(bench: ConnectorBench) -> None:
    """Catches a connector that does not serve the devices of the check, or answers with a value of another type."""
    connector = bench.connector
    devices = bench.producer.device.torch_device, bench.consumer_device.torch_device
    with calling("Connector.serves", opens=True):
        serves = connector.serves(*devices)
    require(
        serves is True,
        f"the connector serves the devices of the check, {devices[0]} and {devices[1]} (Connector.serves)",
    )
    require(isinstance(connector.raw_device_tensors, bool), "Connector.raw_device_tensors is a bool")


def rows_moved_first(bench: ConnectorBench) -> None:
    """The rows of a page slice move before they are gathered. Catches a sender that keeps the old place."""
    edge = bench.open()
    for size in (1024, 2 * bench.pool_bytes):
        gate = bench.gate()
        sent = bench.send(edge, bench.rows_of(size), gate)
        bench.idle(5)
        _move(bench, sent, None)
        gate.open = True
        bench.take(sent)
        bench.release(sent)


def rows_on_the_way(bench: ConnectorBench) -> None:
    """The payload is ready while its rows still move. Catches a sender that reads before `PageSlice.moved`."""
    edge = bench.open()
    for size in (1024, 2 * bench.pool_bytes):
        ready, moved = bench.gate(), bench.gate()
        sent = bench.send(edge, bench.rows_of(size), ready)
        _move(bench, sent, moved)
        ready.open = True
        bench.idle()
        bench.fill(sent)
        moved.open = True
        bench.take(sent)
        bench.release(sent)


def rows_moved_midway(bench: ConnectorBench) -> None:
    """Rows move when a part of them is gathered. Catches a sender that keeps the place of the first gather."""
    edge = bench.open()
    sent = bench.send(edge, bench.rows_of(4 * bench.pool_bytes))
    bench.hold(sent)
    bench.idle()
    if not sent.ref.released:
        _move(bench, sent, None)
    bench.let_go(sent)
    bench.take(sent)
    bench.release(sent)


def rows_on_the_way_midway(bench: ConnectorBench) -> None:
    """Rows still move when a part of them is gathered. Catches a sender that asks for `PageSlice.moved` once."""
    edge = bench.open()
    moved, sent = bench.gate(), bench.send(edge, bench.rows_of(4 * bench.pool_bytes))
    bench.hold(sent)
    bench.idle()
    if not sent.ref.released:
        _move(bench, sent, moved)
        bench.let_go(sent)
        bench.idle()
        bench.fill(sent)
    else:
        bench.let_go(sent)
    moved.open = True
    bench.take(sent)
    bench.release(sent)


def _move(bench: ConnectorBench, sent: Sent, moved: Gate | None) -> None:
    """Moves the rows of a payload. Without `moved`, they are in place at once, and the old place is overwritten. It is kept
    until nothing reads it."""
    memory = sent.memories[0]
    assert isinstance(memory.tensor, WatchedSlice)
    old, place = memory.base, memory.move()
    if moved is None:
        bench.fill(sent)
    else:
        memory.spoil()
    before = memory.tensor.relocate(*place, moved if moved is not None else COMPLETED)
    bench.until(before.done, "the event of a gather is done some time (PageSlice.gathered)")
    if moved is None:
        bench.producer.spoil(old)
