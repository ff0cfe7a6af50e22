"""The connector through GPU memory keeps the contract, between two processes on one GPU and on two."""

import pytest
import torch

from omni.device.cuda import CudaDevice
from omni.testing import check_connector
from omni_cuda_ipc.connector import CudaIpcConnector
from omni_cuda_ipc.plugin import omni_connectors


@pytest.mark.gpu
@pytest.mark.parametrize("processes", [False, True])
def test_keeps_the_contract_on_one_gpu(processes: bool) -> None:
    check_connector(CudaIpcConnector, CudaDevice(), processes=processes)


@pytest.mark.gpu
def test_keeps_the_contract_between_two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    check_connector(CudaIpcConnector, CudaDevice(0), CudaDevice(1))


def test_is_registered_under_its_name() -> None:
    (entry,) = omni_connectors()
    assert (entry.name, entry.connector) == ("cuda_ipc", f"{CudaIpcConnector.__module__}:CudaIpcConnector")


def test_connects_gpus_only() -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    serves = CudaIpcConnector().serves
    assert (serves(gpu, torch.device("cuda", 1)), serves(gpu, cpu), serves(cpu, gpu)) == (True, False, False)
