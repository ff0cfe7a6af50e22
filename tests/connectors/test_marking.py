"""A pool with a board of copied pieces: pieces are under way while their copies run."""

import numpy as np
import pytest
import torch

from omni.connector import EdgeEnd
from omni.connector.pool import BOARD_CELLS, CopiedBoard, PoolPending, PoolReceiver, PoolSender, TensorMemory
from omni.device import COMPLETED
from omni.device.cpu import CpuDevice
from omni.payload import Encoded, Payload
from omni.testing import SimulatedDevice, check_connector
from tests.support.marking_connector import MarkBoard, MarkingConnector
from tests.support.tiers import SLOW, few

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forked_processes")]

QUARTER = 2**14
POOL = 4 * QUARTER


@pytest.mark.slow
def test_keeps_the_contract() -> None:
    path = f"{MarkingConnector.__module__}:{MarkingConnector.__qualname__}"
    check_connector(path, CpuDevice(), processes=True, largest_bytes=2**19)


@pytest.mark.parametrize("seed", few(0, [1, 0, *range(2, 12)], SLOW))
def test_keeps_the_contract_when_copies_are_late(seed: int) -> None:
    device = SimulatedDevice(seed)
    check_connector(MarkingConnector, device, largest_bytes=2**19)
    device.assert_no_races()


class _SeesAll(MarkBoard):
    def __getitem__(self, cell: int) -> int:
        super().__getitem__(cell)  # takes time
        return 2**62


class ReadsEarly(MarkingConnector):
    """The host does not look whether the copies have run."""

    board_type = _SeesAll


def test_a_host_that_reads_before_the_copy_races() -> None:
    device = SimulatedDevice(1)
    with pytest.raises(AssertionError, match="keeps its contents"):
        check_connector(ReadsEarly, device, largest_bytes=2**19)
    assert any("copy_tensors" in str(race) for race in device.races)


class Ends:
    """Both ends on a device whose streams run on demand."""

    def __init__(self) -> None:
        self.device = SimulatedDevice(check=False)
        end = EdgeEnd("a->b", self.device, POOL)
        memory, board = torch.zeros(POOL, dtype=torch.uint8), np.zeros(BOARD_CELLS, np.uint64)
        marks = np.zeros(BOARD_CELLS, np.int64)
        copied = CopiedBoard(marks, torch.from_numpy(marks))
        self.sender = PoolSender(
            end, pool=memory, board=board, address=Encoded(index=0), on_close=lambda: None, copied=copied
        )
        there = TensorMemory(memory, torch.device("cpu"))
        self.receiver = PoolReceiver(
            end, memory=there, board=board, pool_bytes=POOL, on_close=lambda: None, copied=marks
        )

    def arrive(self, nbytes: int) -> list[PoolPending]:
        """A payload of ones. All its pieces that fit into the pool are at the receiver."""
        ref = self.sender.send(Payload(Encoded(index=0), {"x": torch.ones(nbytes, dtype=torch.uint8)}), COMPLETED)
        pendings: list[PoolPending] = []
        for piece in ref.pieces():
            if pendings:
                pendings[0].add(piece)
            else:
                pendings.append(self.receiver.receive(piece))
        return pendings

    def send_copies(self) -> None:
        self.device.run(["a->b-send"])


@pytest.mark.parametrize("nbytes", [8, 2 * QUARTER], ids=["read in place", "copied out in pieces"])
def test_a_piece_is_sent_before_its_copy_ends_and_read_after(nbytes: int) -> None:
    ends = Ends()
    (pending,) = ends.arrive(nbytes)
    ends.receiver.tick()
    assert pending.poll() is None, "the sender's copy has not run"
    ends.send_copies()
    ends.receiver.tick()
    received = pending.poll()
    assert received is not None
    ends.device.synchronize()
    tensor = received.payload.tensors["x"]
    assert isinstance(tensor, torch.Tensor)
    assert bool((tensor == 1).all())


@pytest.mark.parametrize("nbytes", [8, 2 * QUARTER], ids=["read in place", "copied out in pieces"])
def test_an_aborted_payload_keeps_no_receiver_busy(nbytes: int) -> None:
    """The sender's process ends with the copy: the engine aborts the request."""
    ends = Ends()
    (pending,) = ends.arrive(nbytes)
    pending.abort()
    ends.receiver.tick()
    assert not ends.receiver.busy
    assert all(ends.arrive(QUARTER) for _ in range(4)), "all of the pool is free again"
