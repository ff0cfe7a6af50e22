"""The connector `shm` with a board of copied pieces, as `cuda_ipc` has one: on the CPU, and with copies that are late."""

import mmap
import os

import numpy as np
import torch
from numpy.typing import NDArray

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, CopiedBoard, PoolPiece, PoolReceiver, PoolSender, TensorMemory
from omni.connector.pool.sender import PayloadRange
from omni.device import COMPLETED, Event
from omni.ipc.memory import SharedMemoryAddress, create_memory


class MarkBoard:
    """A board as the host reads it. On a simulated device a look is a poll of the copy's event, which takes time, and which
    orders later work of the host after the copy: its checker follows events, and no memory that a host polls.

    copies: by cell, the latest piece in it and the end of its copy, as the sender noted them in this process.
    """

    def __init__(self, marks: NDArray[np.int64], copies: dict[int, tuple[int, Event]]) -> None:
        self.marks = marks
        self.copies = copies

    def __getitem__(self, cell: int) -> int:
        number, copied = self.copies.get(cell, (0, COMPLETED))
        if number and not copied.done():
            return number - 1
        return int(self.marks[cell])


class MarkingSender(PoolSender):
    """Notes the end of each copy."""

    copies: dict[int, tuple[int, Event]]

    def copy(self, payload_range: PayloadRange, piece: PoolPiece) -> tuple[Event, Exception | None]:
        copied, error = super().copy(payload_range, piece)
        self.copies[piece.cell] = piece.number, self._device.record(self._stream)
        return copied, error


_SENDERS: dict[int, tuple[mmap.mmap, MarkBoard]] = {}
"""Memory and board of the senders in this process, by descriptor."""


class MarkingConnector:
    reach = Reach.HOST
    raw_device_tensors = False
    board_type: type[MarkBoard] = MarkBoard

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return True

    def sender(self, end: EdgeEnd) -> Sender:
        descriptor, mapping = create_memory(2 * BOARD_BYTES + end.pool_bytes, "omni-marking")
        board = self.board_type(_marks(mapping), {})
        _SENDERS[descriptor] = mapping, board

        def close() -> None:
            del _SENDERS[descriptor]
            os.close(descriptor)

        copied = CopiedBoard(board, torch.from_numpy(board.marks))  # type: ignore[arg-type]
        address = SharedMemoryAddress(os.getpid(), descriptor, len(mapping))
        sender = MarkingSender(
            end, pool=_pool(mapping), board=_board(mapping), address=address, on_close=close, copied=copied
        )
        sender.copies = board.copies
        return sender

    def receiver(self, end: EdgeEnd, address: object) -> Receiver:
        assert isinstance(address, SharedMemoryAddress)
        if address.pid == os.getpid():
            mapping, board = _SENDERS[address.descriptor]
        else:
            mapping = address.map()
            board = self.board_type(_marks(mapping), {})
        memory = TensorMemory(_pool(mapping), end.device.torch_device)
        return PoolReceiver(
            end,
            memory=memory,
            board=_board(mapping),
            pool_bytes=end.pool_bytes,
            on_close=lambda: None,
            copied=board,  # type: ignore[arg-type]
        )


def _board(mapping: mmap.mmap) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.frombuffer(mapping, np.uint64, BOARD_BYTES // 8)


def _marks(mapping: mmap.mmap) -> NDArray[np.int64]:
    return np.frombuffer(mapping, np.int64, BOARD_BYTES // 8, BOARD_BYTES)


def _pool(mapping: mmap.mmap) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(mapping, np.uint8, offset=2 * BOARD_BYTES))
