"""The local connector keeps the contract."""

import pytest
import torch

from omni.connector import EdgeEnd
from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.errors import OmniError
from omni.payload import Payload
from omni.testing import check_connector
from omni.testing.connectors import Gate
from omni.testing.connectors.values import Meta
from omni_local.connector import LocalConnector, LocalRef
from omni_local.plugin import omni_connectors

END = EdgeEnd("edge", CpuDevice(), 2**16)


def test_keeps_the_contract():
    check_connector(LocalConnector, CpuDevice(), largest_bytes=2**19)


@pytest.mark.gpu
def test_keeps_the_contract_on_cuda():
    check_connector(LocalConnector, CudaDevice())


def test_the_local_connector_does_not_reach_another_process():
    with pytest.raises(AssertionError, match="reaches beyond one"):
        check_connector(LocalConnector, CpuDevice(), processes=True, largest_bytes=2**16)


def test_is_registered_under_its_name():
    (entry,) = omni_connectors()
    assert (entry.name, entry.connector) == ("local", f"{LocalConnector.__module__}:LocalConnector")


def test_a_released_reference_keeps_no_payload_alive():
    connector = LocalConnector()
    ref = connector.sender(END).send(Payload(Meta(number=1), {"a": torch.zeros(2)}), COMPLETED)
    (piece,) = ref.pieces()
    connector.receiver(END, None).receive(piece).release(Gate())
    assert isinstance(ref, LocalRef)
    assert ref.received is None


def test_an_aborted_reference_has_no_pieces():
    ref = LocalConnector().sender(END).send(Payload(Meta(number=1)), COMPLETED)
    ref.abort("given up")
    assert ref.freed
    assert not ref.pieces()


def test_a_payload_that_was_given_up_does_not_arrive():
    connector = LocalConnector()
    ref = connector.sender(END).send(Payload(Meta(number=1)), COMPLETED)
    (piece,) = ref.pieces()
    pending = connector.receiver(END, None).receive(piece)
    pending.abort()
    with pytest.raises(OmniError, match="given up"):
        pending.poll()


def test_refuses_another_connectors_piece():
    with pytest.raises(TypeError, match="str"):
        LocalConnector().receiver(END, None).receive("foreign")
