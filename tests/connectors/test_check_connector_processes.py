"""The conformance suite of connectors with the consumer's end in a second process."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from omni.device.cpu import CpuDevice
from omni.testing import check_connector
from omni.testing.connectors import deaths
from omni.testing.connectors.arrivals import every_dtype_and_layout
from omni.testing.connectors.bench import ConnectorBench
from omni.testing.connectors.ends import RemoteEnd, path_of
from tests.connectors import inline_faults
from tests.connectors.inline import InlineConnector

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forked_processes")]

SMALL = 2**19


@pytest.mark.slow  # by default examples/connector and the tests of connectors run the suite in two processes
def test_inline_pieces_keep_the_contract_in_two_processes():
    check_connector(f"{InlineConnector.__module__}:InlineConnector", CpuDevice(), largest_bytes=SMALL)


@pytest.fixture
def bench() -> Iterator[Callable[[type[InlineConnector]], ConnectorBench]]:
    ends = []

    def make(connector: type[InlineConnector]) -> ConnectorBench:
        ends.append(RemoteEnd(path_of(connector), CpuDevice()))
        devices = CpuDevice(), CpuDevice()
        return ConnectorBench(connector(), devices, ends[0], SMALL, itertools.count(1).__next__)

    yield make
    for end in ends:
        end.kill()


def test_pieces_that_cannot_be_sent_are_found(bench):
    made = bench(inline_faults.InlineSendsWhatCannotBeSent)
    with pytest.raises(AssertionError, match="pieces and addresses can be sent"):
        every_dtype_and_layout(made)


def test_a_connector_of_one_process_that_claims_the_host_is_found(bench):
    """With both ends in one thread it is right."""
    made = bench(inline_faults.InlineKeepsPiecesInATable)
    with pytest.raises(AssertionError, match=r"Receiver\.receive does not raise"):
        every_dtype_and_layout(made)


def test_a_sender_that_is_mute_after_its_peer_is_lost_is_found(bench, monkeypatch):
    made = bench(inline_faults.InlineForgetsThePeer)
    end, following = made.end, RemoteEnd(path_of(inline_faults.InlineForgetsThePeer), CpuDevice())
    try:
        made.until(lambda: end.started and following.started, "both processes start") if following.turn() else None
        monkeypatch.setattr("omni.testing.connectors.promises.PATIENCE_SECONDS", 3.0)
        with pytest.raises(AssertionError, match="a payload that is ready arrives"):
            deaths.consumer_killed(made, end, following)
    finally:
        following.kill()


def test_a_receiver_that_waits_for_a_dead_sender_is_found(bench, monkeypatch):
    monkeypatch.setattr(deaths, "CLOSE_SECONDS", 0.5)
    made = bench(inline_faults.InlineWaitsForThePeer)
    with pytest.raises(AssertionError, match="sender's process has ended is idle"):
        deaths.sender_killed(made, made.end)
