"""The conformance suite of connectors passes a reference connector and finds each broken promise, in one thread."""

from collections.abc import Callable

import pytest

from omni.connector import Connector
from omni.device.cpu import CpuDevice
from omni.errors import ConfigError
from omni.testing import SimulatedDevice, check_connector
from tests.connectors import faults
from tests.connectors.inline import InlineConnector

SMALL = 2**19


def test_a_connector_with_inline_pieces_keeps_the_contract():
    check_connector(InlineConnector, CpuDevice(), processes=False, largest_bytes=2**21)


def test_it_keeps_the_contract_on_a_device_whose_work_is_late():
    device = SimulatedDevice(seed=1)
    check_connector(InlineConnector, device, largest_bytes=SMALL)
    device.assert_no_races()


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (faults.LocalFreesEarly, "not free before the release event"),
        (faults.LocalAbortsReleased, "does not free what is still being read"),
        (faults.LocalForgetsTheProducersAbort, "an aborted payload"),
        (faults.LocalForgetsTheConsumersAbort, "an aborted payload is freed"),
        (faults.LocalAbortsSent, "a payload arrives unless it is lost|stays"),
        (faults.LocalIgnoresReady, "nothing is ready before"),
        (faults.LocalCopies, "without a copy"),
        (faults.LocalCopiesSlices, "page slices travel as they are"),
        (faults.LocalDeniesItsReferences, "passes the same memory says so"),
        (faults.LocalWaits, "no call waits"),
        (faults.LocalMixesUp, "with its own meta"),
        (faults.LocalForgetsDiscards, "Receiver.discard"),
        (faults.LocalRepeatsPieces, "each piece once"),
        (faults.LocalClosesOnce, "Sender.close does not fail"),
        (faults.LocalServesNothing, "Connector.serves"),
        (faults.LocalClaimsTheHost, "is a msgspec.Struct"),
        (faults.InlineIgnoresReady, "nothing is ready before"),
        (faults.InlineIgnoresMoved, "pages.* keeps its contents"),
        (faults.InlineNeverReportsGathers, "reports each gather"),
        (faults.InlineKeepsThePlace, "pages.* keeps its contents"),
        (faults.InlineReversesPieces, "Receiver.receive does not fail"),
        (faults.InlineFreesBeforeItReads, "keeps its contents"),
        (faults.InlineChangesADtype, "keeps its dtype"),
        (faults.InlineLosesEmptyPayloads, "a payload that is ready arrives"),
        (faults.InlineWaits, "no call waits"),
        (faults.InlineSendsAborted, "an aborted payload"),
        (faults.InlineSendsNoStructs, "a piece is a msgspec.Struct"),
        (faults.InlineHasNoAddress, "an address is a msgspec.Struct"),
        (faults.InlineIsAlwaysBusy, "not busy any more"),
        (faults.InlineReusesReleasedMemory, "also when it is read late"),
        (faults.InlineFreesAborted, "also when it is read late"),
        (faults.InlineMixesEdges, "keeps its|own meta|arrives"),
        (faults.InlinePoolNeverDrains, "never keep others from arriving|is ready arrives"),
        (faults.InlinePoolLosesDiscarded, "Receiver.discard|is ready arrives"),
        (faults.InlinePoolLosesAborted, "Pending.abort|is ready arrives"),
    ],
)
def test_the_suite_finds_a_broken_connector(
    broken: Callable[[], Connector], promise: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omni.testing.connectors.promises.PATIENCE_SECONDS", 0.5)
    with pytest.raises(AssertionError, match=f"connector contract broken: .*({promise})"):
        check_connector(broken, CpuDevice(), processes=False, largest_bytes=SMALL)


def test_a_factory_that_a_second_process_cannot_import_is_refused():
    with pytest.raises(ConfigError, match=r"second process cannot import .*processes=False"):
        check_connector(lambda: InlineConnector(), CpuDevice())
