"""The connector through shared memory keeps the contract, in one process and between two."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omni.connector import EdgeEnd
from omni.connector.pool import BOARD_BYTES
from omni.device.cpu import CpuDevice
from omni.device.cuda import CudaDevice
from omni.errors import ConfigError
from omni.ipc.memory import SharedMemoryAddress
from omni.testing import SimulatedDevice, check_connector
from omni.testing.connectors import LARGEST_BYTES
from omni_shm.connector import SharedMemoryConnector
from omni_shm.plugin import omni_connectors
from tests.support.tiers import SLOW, few


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("largest_bytes", few(1, [2**21, LARGEST_BYTES], SLOW))
def test_keeps_the_contract(largest_bytes: int) -> None:
    """With both ends in one thread, and then in two processes."""
    check_connector(SharedMemoryConnector, CpuDevice(), processes=True, largest_bytes=largest_bytes)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", few(0, range(6), SLOW))
def test_its_copies_race_with_nothing(seed: int) -> None:
    device = SimulatedDevice(seed)
    check_connector(SharedMemoryConnector, device, largest_bytes=2**19)
    device.assert_no_races()


@pytest.mark.slow
def test_payloads_of_a_gibibyte_pass_between_processes() -> None:
    check_connector(SharedMemoryConnector, CpuDevice(), processes=True, largest_bytes=2**30)


@pytest.mark.gpu
@pytest.mark.parametrize("processes", [False, True])
def test_keeps_the_contract_on_cuda(processes: bool) -> None:
    check_connector(SharedMemoryConnector, CudaDevice(), processes=processes)


@pytest.mark.gpu
def test_keeps_the_contract_from_a_gpu_to_the_cpu() -> None:
    check_connector(SharedMemoryConnector, CudaDevice(), CpuDevice())


def test_is_registered_under_its_name() -> None:
    (entry,) = omni_connectors()
    assert (entry.name, entry.connector) == ("shm", f"{SharedMemoryConnector.__module__}:SharedMemoryConnector")


def test_connects_any_two_devices() -> None:
    assert SharedMemoryConnector().serves(torch.device("cuda", 0), torch.device("cpu"))


def test_a_pool_that_cannot_be_had_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="a->b: pool_bytes"):
        SharedMemoryConnector().sender(EdgeEnd("a->b", CpuDevice(), 2**62))


def test_memory_of_a_process_that_has_ended_is_refused() -> None:
    gone = SharedMemoryAddress(2**22, 5, BOARD_BYTES + 2**16)
    with pytest.raises(ConfigError, match=r"a->b: connector: cannot reach the memory of process"):
        SharedMemoryConnector().receiver(EdgeEnd("a->b", CpuDevice(), 2**16), gone)


class PinningDevice(CpuDevice):
    """Keeps what is pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[torch.Tensor] = []

    def pin(self, memory: torch.Tensor) -> Callable[[], None]:
        self.pinned.append(memory)
        return lambda: self.pinned.remove(memory)


def test_ends_in_one_process_pin_one_mapping_until_the_close() -> None:
    device = PinningDevice()
    connector, end = SharedMemoryConnector(), EdgeEnd("a->b", device, 2**16)
    sender = connector.sender(end)
    receiver = connector.receiver(end, sender.address)
    assert len(device.pinned) == 1
    receiver.close()
    sender.close()
    assert not device.pinned


def test_closed_ends_leave_no_descriptor_and_no_mapping() -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("omni-edge")

    connector, end = SharedMemoryConnector(), EdgeEnd("a->b", CpuDevice(), 2**16)
    before = held()
    sender = connector.sender(end)
    receiver = connector.receiver(end, sender.address)
    assert held() != before
    receiver.close()
    sender.close()
    del sender, receiver
    assert held() == before
