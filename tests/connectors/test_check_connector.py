"""The conformance suite of connectors passes a reference connector and finds each broken promise, in one thread."""

import gc
import itertools
import time
from collections.abc import Callable

import pytest

from omni.connector import Connector, EdgeEnd, Reach, Received, Receiver, Sender
from omni.device.cpu import CpuDevice
from omni.errors import ConfigError
from omni.testing import SimulatedDevice, check_connector
from omni.testing.connectors.bench import ConnectorBench
from omni.testing.connectors.endings import dropped_after_the_release_event
from omni.testing.connectors.ends import LocalEnd
from omni.testing.connectors.promises import PATIENCE_SECONDS
from tests.connectors import inline_faults, local_faults
from tests.connectors.inline import InlineConnector, InlinePending, InlineReceiver
from tests.support.tiers import few

pytestmark = pytest.mark.thorough

SMALL = 2**19


def test_a_connector_with_inline_pieces_keeps_the_contract():
    check_connector(InlineConnector, CpuDevice(), processes=False, largest_bytes=2**19)


@pytest.mark.slow
def test_inline_pieces_keep_the_contract_on_a_late_device():
    device = SimulatedDevice(seed=1)
    check_connector(InlineConnector, device, largest_bytes=SMALL)
    device.assert_no_races()


@pytest.mark.parametrize(
    ("broken", "promise"),
    few(
        16,
        [
            (local_faults.LocalFreesEarly, "not free before the release event"),
            (local_faults.LocalReleasesAgain, "a second release does not free memory that is still being read"),
            (local_faults.LocalAbortsReleased, "does not free memory that is still being read"),
            (local_faults.LocalForgetsTheProducersAbort, "an aborted payload"),
            (local_faults.LocalForgetsTheConsumersAbort, "an aborted payload is freed"),
            (local_faults.LocalAbortsSent, "keeps its contents"),
            (local_faults.LocalIgnoresReady, "nothing is ready before"),
            (local_faults.LocalCopies, "without a copy"),
            (local_faults.LocalCopiesSlices, "page slices travel as they are"),
            (local_faults.LocalDeniesItsReferences, "passes the same memory says so"),
            (local_faults.LocalWaits, "no call waits"),
            (local_faults.LocalMixesUp, "with its own meta"),
            (local_faults.LocalForgetsDiscards, "Receiver.discard"),
            (local_faults.LocalRepeatsPieces, "each piece once"),
            (local_faults.LocalClosesOnce, "Sender.close does not raise"),
            (local_faults.LocalServesNothing, "Connector.serves"),
            (local_faults.LocalClaimsTheHost, "is a msgspec.Struct"),
            (inline_faults.InlineIgnoresReady, "nothing is ready before"),
            (inline_faults.InlineIgnoresMoved, "pages.* keeps its contents"),
            (inline_faults.SharedMemoryAsksOnceForMoved, "keeps its contents"),
            (inline_faults.InlineClaimsRawTensors, "copies through the host says so .*pieces carry .*set it to False"),
            (
                inline_faults.SharedMemoryClaimsRawTensors,
                "copies through the host says so .*in host memory than of .*; set it to False",
            ),
            (inline_faults.InlineClaimsTheProcess, "within a process, page slices travel as they are"),
            (inline_faults.InlineNeverReportsGathers, "reports each gather"),
            (inline_faults.InlineKeepsThePlace, "pages.* keeps its contents"),
            (inline_faults.InlineReversesPieces, "Receiver.receive does not raise"),
            (inline_faults.InlineFreesBeforeItReads, "keeps its contents"),
            (inline_faults.InlineChangesADtype, "keeps its dtype"),
            (inline_faults.InlineLosesEmptyPayloads, "a payload that is ready arrives"),
            (inline_faults.InlineWaits, "no call waits"),
            (inline_faults.InlineSleeps, "no call waits: Ref.pieces sleeps for 0.01 s: return, and ask again"),
            (inline_faults.InlineSendsAborted, "an aborted payload"),
            (inline_faults.InlineSendsNoStructs, "a piece is a msgspec.Struct"),
            (inline_faults.InlineHasNoAddress, "an address is a msgspec.Struct"),
            (inline_faults.InlineIsAlwaysBusy, "no longer busy"),
            (inline_faults.InlineIsNeverBusy, "memory of received payloads goes back .* give True from Receiver.busy"),
            (
                inline_faults.InlineKeepsReleasedMemory,
                "memory of received payloads goes back .* drop it in Receiver.tick",
            ),
            (inline_faults.InlineIsReadyAtOnce, "keeps its contents"),
            (inline_faults.InlineReusesReleasedMemory, "also when it is read late"),
            (
                inline_faults.InlineDropsReleasedMemory,
                "until the event of Pending.release is done .*: keep a reference .* drop it in Receiver.tick once",
            ),
            (inline_faults.InlineReleasesAgain, "also when it is read late"),
            (inline_faults.InlineFreesAborted, "also when it is read late"),
            (inline_faults.InlineMixesEdges, "keeps its|own meta|arrives"),
            (inline_faults.InlinePoolNeverDrains, "never keep others from arriving|is ready arrives"),
            (inline_faults.InlinePoolLosesDiscarded, "Receiver.discard|is ready arrives"),
            (inline_faults.InlinePoolLosesAborted, "Pending.abort|is ready arrives"),
        ],
    ),
)
def test_the_suite_finds_a_broken_connector(
    broken: Callable[[], Connector], promise: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omni.testing.connectors.promises.PATIENCE_SECONDS", 0.5)
    with pytest.raises(AssertionError, match=f"connector contract broken: .*({promise})"):
        check_connector(broken, CpuDevice(), processes=False, largest_bytes=SMALL)


def test_a_receiver_that_is_always_busy_is_found_soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("omni.testing.connectors.promises.IDLE_SECONDS", 0.5)
    since = time.monotonic()
    with pytest.raises(AssertionError, match=r"no longer busy .*give False once tick has nothing left to do"):
        check_connector(inline_faults.InlineIsAlwaysBusy, CpuDevice(), processes=False, largest_bytes=SMALL)
    assert time.monotonic() - since < PATIENCE_SECONDS / 2


class LeavesCycles(InlineConnector):
    """The released object refers to itself: the garbage collector finds it."""

    class receiver_type(InlineReceiver):
        def upload(self, pending: InlinePending) -> Received:
            vars(pending)["itself"] = pending
            return super().upload(pending)


def test_memory_in_cycles_is_not_kept() -> None:
    connector, devices = LeavesCycles(), (CpuDevice(), CpuDevice())
    bench = ConnectorBench(connector, devices, LocalEnd(connector, devices[1]), SMALL, itertools.count(1).__next__)
    gc.disable()
    try:
        dropped_after_the_release_event(bench)
        bench.settle()
    finally:
        gc.enable()


def test_a_factory_that_a_second_process_cannot_import_is_refused():
    with pytest.raises(ConfigError, match=r"second process cannot import .*processes=False"):
        check_connector(lambda: InlineConnector(), CpuDevice())


class KeepsItsEnds(InlineConnector):
    def __init__(self) -> None:
        self.ends: list[EdgeEnd] = []

    def sender(self, end: EdgeEnd) -> Sender:
        self.ends.append(end)
        return super().sender(end)

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        self.ends.append(end)
        return super().receiver(end, address)


@pytest.mark.parametrize(("reach", "consumer"), [(Reach.PROCESS, "cpu"), (Reach.HOST, "cpu/2")])
def test_ends_are_opened_as_by_an_engine(reach: Reach, consumer: str):
    """With the names of an edge and of places, from which a connector may take those of its streams and files."""
    connector, devices = KeepsItsEnds(), (CpuDevice(), CpuDevice())
    connector.reach = reach
    bench = ConnectorBench(connector, devices, LocalEnd(connector, devices[1]), SMALL, itertools.count(1).__next__)
    bench.open()
    assert [end.device for end in connector.ends] == list(devices)
    assert {(end.edge, end.producer, end.consumer) for end in connector.ends} == {("thinker->talker", "cpu", consumer)}
