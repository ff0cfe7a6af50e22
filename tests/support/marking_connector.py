"""The connector `shm` with a board of copied pieces, as `cuda_ipc` has one: on the CPU, and with copies that are late."""

import mmap
import os

import numpy as np
import torch
from numpy.typing import NDArray

from omni.connector import EdgeEnd, Reach, Receiver, Sender
from omni.connector.pool import BOARD_BYTES, CopiedBoard, PoolPiece, PoolReceiver, PoolSender, TensorMemory
from omni.connector.pool.sender import PayloadRange
from omni.device import Event
from omni.ipc.memory import SharedMemoryAddress, create_memory


class MarkBoard:
    """A board as the host reads it. On a simulated device a look is a poll of the copy's event, which takes time, and which
    orders later work of the host after the copy: its checker follows events, and no memory that a host polls.

    copies: by cell, its pieces and the ends of their copies, as the sender noted them in this process. There are several if a cell
    was given again before the copy into it had run, as after an abort.
    """

    def __init__(self, marks: NDArray[np.int64], copies: dict[int, list[tuple[int, Event]]]) -> None:
        self.marks = marks
        self.copies = copies

    def __getitem__(self, cell: int) -> int:
        noted = self.copies.get(cell, [])
        for number, copied in reversed(noted):
            if copied.done():
                return number
        return noted[0][0] - 1 if noted else int(self.marks[cell])


class MarkingSender(PoolSender):
    """Notes the end of each copy."""

    copies: dict[int, list[tuple[int, Event]]]

    def copy(self, payload_range: PayloadRange, piece: PoolPiece) -> tuple[Event, Exception | None]:
        copied, error = super().copy(payload_range, piece)
        under_way = [noted for noted in self.copies.get(piece.cell, []) if not noted[1].done()]
        self.copies[piece.cell] = [*under_way, (piece.number, self._device.record(self._stream))]
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
