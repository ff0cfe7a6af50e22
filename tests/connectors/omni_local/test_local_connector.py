"""The local connector keeps the contract, and the contract's suite finds connectors that do not."""

from collections.abc import Callable

import pytest
import torch

from omni.connector import Pending, Received, Ref
from omni.device import COMPLETED, Device, Event, Stream
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.errors import OmniError
from omni.payload import Payload
from omni.testing import check_connector
from omni.testing.connectors import Gate, Numbered
from omni_local.connector import LocalConnector, LocalRef
from omni_local.plugin import omni_connectors


def test_keeps_the_contract() -> None:
    check_connector(LocalConnector, CpuDevice())


@pytest.mark.gpu
def test_keeps_the_contract_on_cuda() -> None:
    check_connector(LocalConnector, CudaDevice())


def test_is_registered_under_its_name() -> None:
    (entry,) = omni_connectors()
    assert (entry.name, entry.connector) == ("local", f"{LocalConnector.__module__}:LocalConnector")


def test_a_released_reference_keeps_no_payload_alive(stream: Stream) -> None:
    connector = LocalConnector()
    ref = connector.send(Payload(Numbered(index=1), {"a": torch.zeros(2)}), COMPLETED, stream)
    assert isinstance(ref, LocalRef)
    connector.release(ref, Gate())
    assert ref.received is None


def test_an_aborted_payload_says_why(stream: Stream) -> None:
    connector = LocalConnector()
    ref = connector.send(Payload(Numbered(index=1)), COMPLETED, stream)
    pending = connector.receive(ref, stream)
    connector.abort(ref, "the user left")
    with pytest.raises(OmniError, match="the user left"):
        pending.poll()


def test_refuses_another_connectors_reference() -> None:
    class Foreign:
        freed = released = False

    with pytest.raises(TypeError, match="Foreign"):
        LocalConnector().release(Foreign(), COMPLETED)


class _FreesEarly(LocalConnector):
    def release(self, ref: Ref, after: Event) -> None:
        super().release(ref, COMPLETED)


class _AbortsReleased(LocalConnector):
    def abort(self, ref: Ref, reason: str) -> None:
        super().abort(ref, reason)
        assert isinstance(ref, LocalRef)
        ref.end = COMPLETED


class _ForgetsAborts(LocalConnector):
    def abort(self, ref: Ref, reason: str) -> None:
        pass


class _IgnoresReady(LocalConnector):
    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        return super().send(payload, COMPLETED, stream)


class _Copies(LocalConnector):
    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        tensors = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in payload.tensors.items()}
        return super().send(Payload(payload.meta, tensors), ready, stream)


class _Waits(LocalConnector):
    def release(self, ref: Ref, after: Event) -> None:
        while not after.done():
            pass
        super().release(ref, after)


class _MixesUp(LocalConnector):
    """Brings the newest payload, whichever was asked for."""

    newest: Ref | None = None

    def send(self, payload: Payload, ready: Event, stream: Stream) -> Ref:
        self.newest = super().send(payload, ready, stream)
        return self.newest

    def receive(self, ref: Ref, stream: Stream) -> Pending:
        assert isinstance(ref, LocalRef)
        return _Late(self)


class _Late:
    def __init__(self, connector: _MixesUp) -> None:
        self._connector = connector

    def poll(self) -> Received | None:
        assert isinstance(self._connector.newest, LocalRef)
        return self._connector.newest.received


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (_FreesEarly, "not free before the release event"),
        (_AbortsReleased, "does not free what is still being read"),
        (_ForgetsAborts, "an aborted payload is free"),
        (_IgnoresReady, "not ready before its event"),
        (_Copies, "travels without a copy"),
        (_Waits, "no call waits"),
        (_MixesUp, "brings its own payload"),
    ],
)
def test_the_suite_finds_a_broken_connector(
    broken: Callable[[], LocalConnector], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni.testing.connectors._PATIENCE_SECONDS", 0.05)
    with pytest.raises(AssertionError, match=promise):
        check_connector(broken, CpuDevice())


@pytest.fixture
def stream() -> Stream:
    device: Device = CpuDevice()
    return device.stream("test")
