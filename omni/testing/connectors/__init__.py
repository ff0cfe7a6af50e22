"""The conformance suite of connectors: `check_connector`."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack

from omni.connector import Connector, Reach
from omni.device import Device, SyncPoint, may_sync
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.plugin import locate
from omni.testing.connectors import arrivals, deaths, endings
from omni.testing.connectors.bench import ConnectorBench
from omni.testing.connectors.ends import End, LocalEnd, RemoteEnd, path_of
from omni.testing.connectors.promises import Gate, calling, require
from omni.testing.simulation.device import SimulatedDevice

__all__ = ["CHECKS", "LARGEST_BYTES", "Gate", "check_connector"]

LARGEST_BYTES = 2**23
_LATE_BYTES = 2**19

CHECKS: tuple[Callable[[ConnectorBench], None], ...] = (
    arrivals.claims,
    arrivals.same_memory,
    arrivals.through_the_host,
    arrivals.every_dtype_and_layout,
    arrivals.every_size,
    arrivals.in_order,
    arrivals.not_before_ready,
    arrivals.rows_moved_first,
    arrivals.rows_on_the_way,
    arrivals.rows_moved_midway,
    arrivals.rows_on_the_way_midway,
    endings.intact_until_the_release_event,
    endings.kept_until_the_release_event,
    endings.released_in_any_order,
    endings.released_twice,
    endings.aborted_before_sent,
    endings.aborted_after_sent,
    endings.aborted_midway,
    endings.abandoned,
    endings.discarded,
    endings.aborted_after_release,
    endings.slow_consumers,
    endings.several_edges,
    endings.closed_under_way,
    endings.nothing_leaks,
    endings.dropped_after_the_release_event,
)
"""The checks, in order. Each docstring names the faults that its check detects."""


def check_connector(
    factory: Callable[[], Connector] | str,
    device: Device,
    consumer_device: Device | None = None,
    *,
    processes: bool | None = None,
    largest_bytes: int = LARGEST_BYTES,
) -> None:
    """Raises AssertionError, which names the broken promise, if connectors made by `factory` break the contract of
    `omni.connector.base`.

    factory: makes a connector; or its import path, `"module:attribute"`.
    device: of the producer. consumer_device: of the consumer; `device` by default. On two `CpuDevice`s, whose work is done at
        once, the checks also run on a `SimulatedDevice`, whose work is late, with payloads of 512 KiB at most.
    processes: whether the checks also run with the consumer's end in a second process. By default they do beyond
        `Reach.PROCESS`, unless a device is one that only tests have (`SimulatedDevice`). The second process is a fresh
        interpreter that imports the factory: one that it cannot import raises ConfigError. It opens the device by name.
    largest_bytes: of a payload. Each edge has a pool of an eighth of it, 64 KiB at least and 16 MiB at most, so that
        large payloads pass in pieces. A check has up to ten pools, or twice this number, of payloads at one time.

    The suite acts as the engine does between two ends, in its order: it passes on the pieces in every turn, those of
    several payloads in between each other, ticks a receiver while it is `busy`, and polls only payloads that their
    consumer asks for. In a second process, pieces and addresses travel as `omni.ipc.Typed` structs. Tensors are filled
    and read in phases on a stream of each end, and compared byte by byte on the host. The suite overwrites a payload's memory as
    soon as `Ref.freed` is true.

    | checked | in |
    |---|---|
    | devices and claims of the connector | `claims`, `same_memory`, `through_the_host` |
    | values of every dtype, shape, layout and size; payloads without tensors; the order | `every_*`, `in_order` |
    | nothing is read before `ready` and `PageSlice.moved`, rows that move are found, gathers are reported | `rows_*` |
    | memory is there and stays as it is until the release event, then is dropped | `endings` |
    | releases, also twice, aborts and discards in any order and state | `endings` |
    | payloads without a consumer do not block others | `slow_consumers` |
    | several edges of one connector; `close` at any time, and twice | `several_edges`, `closed_under_way` |
    | after each check, memory is free, no receiver is busy, and a payload larger than the pool passes | `ConnectorBench.settle` |
    | no call fails, except `Pending.poll` with OmniError for a payload that is lost; none waits for an event | everywhere |

    With a second process: all of these, and

    | checked | in |
    |---|---|
    | addresses and pieces are structs that can be sent | everywhere |
    | the consumer's process is killed: `Sender.peer_lost` frees all, and a new receiver gets payloads | `consumer_killed` |
    | the producer's process is killed: arrived payloads stay, the receiver is idle within 30 s and closes | `sender_killed` |
    """
    connector = _make(factory)
    require(isinstance(connector.reach, Reach), "Connector.reach is a Reach")
    devices = device, device if consumer_device is None else consumer_device
    beyond = connector.reach is not Reach.PROCESS
    if processes is None:
        processes = beyond and all(isinstance(each, CpuDevice | CudaDevice) for each in devices)
    path = path_of(factory) if processes else None
    require(path is None or beyond, "a connector between two processes reaches beyond one (Connector.reach)")
    numbers = itertools.count(1).__next__

    def check_here(devices: tuple[Device, Device], largest_bytes: int) -> None:
        for check in CHECKS:
            connector = _make(factory)
            _run(check, ConnectorBench(connector, devices, LocalEnd(connector, devices[1]), largest_bytes, numbers))

    with ExitStack() as started:
        # First, so that their imports run beside the checks here.
        ends = [_started(path, devices[1], started) for _ in range(2)] if path is not None else []
        check_here(devices, largest_bytes)
        if all(isinstance(each, CpuDevice) for each in devices):
            # No checker: a connector may have a host look at memory that a stream writes, an order which it does not know.
            late = SimulatedDevice(seed=1, check=False)
            check_here((late, late), min(largest_bytes, _LATE_BYTES))
        if ends:
            _check_processes(ends, lambda end: ConnectorBench(_make(factory), devices, end, largest_bytes, numbers))


def _started(path: str, device: Device, until: ExitStack) -> RemoteEnd:
    """A second process, which ends with `until`. device: of its end."""
    end = RemoteEnd(path, device)
    until.callback(end.kill)
    return end


def _check_processes(ends: list[RemoteEnd], bench: Callable[[End], ConnectorBench]) -> None:
    """ends: two; the checks end both. bench: with an end of its consumer."""
    first, second = ends
    for check in CHECKS:
        _run(check, bench(first))
    _named(deaths.consumer_killed, bench(first), first, second)
    _named(deaths.sender_killed, bench(second), second)


def _run(check: Callable[[ConnectorBench], None], bench: ConnectorBench) -> None:
    def settled(bench: ConnectorBench) -> None:
        check(bench)
        bench.settle()

    settled.__name__ = check.__name__
    _named(settled, bench)


def _named(check: Callable[..., None], bench: ConnectorBench, *ends: RemoteEnd) -> None:
    """Runs a check. Its name comes with the error."""
    try:
        check(bench, *ends)
    except AssertionError as error:
        where = "in two processes" if isinstance(bench.end, RemoteEnd) else "in one thread"
        error.add_note(f"in the check {check.__name__}, with both ends {where}")
        raise
    # Copies may still read memory that their payloads' refs no longer answer for.
    with may_sync(SyncPoint.CLOSE):
        bench.producer.device.synchronize()
        bench.consumer_device.synchronize()


def _make(factory: Callable[[], Connector] | str) -> Connector:
    made = locate(factory, "factory") if isinstance(factory, str) else factory
    assert callable(made)
    with calling("the factory", opens=True):
        connector: Connector = made()
    return connector
