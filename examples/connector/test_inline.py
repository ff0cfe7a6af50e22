"""The connector keeps the contract, in one process and between two."""

from omni.device import CpuDevice
from omni.testing import check_connector
from omni_inline.connector import InlineConnector


def test_keeps_the_contract() -> None:
    check_connector(InlineConnector, CpuDevice())
