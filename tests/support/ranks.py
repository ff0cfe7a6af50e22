"""The ranks of a stage as threads of one process, each with a communicator of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from omni.parallel import Communicator, open_communicator
from tests.support.patience import PATIENCE_SECONDS

Result = TypeVar("Result")


def on_ranks(
    size: int, work: Callable[[Communicator], Result], timeout_seconds: float = PATIENCE_SECONDS
) -> list[Result]:
    """What `work` returns on each rank. Raises the error of the first rank that has one."""
    store = HashStore()

    def run(rank: int) -> Result:
        communicator = open_communicator(store, rank, size, torch.device("cpu"), timeout_seconds)
        try:
            with torch.inference_mode():
                return work(communicator)
        finally:
            communicator.close()

    with ThreadPoolExecutor(size) as threads:
        running = [threads.submit(run, rank) for rank in range(size)]
    return [each.result() for each in running]
