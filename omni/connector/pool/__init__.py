"""Building blocks of connectors that copy payloads through a pool of memory that both ends see.

| memory | written by | read by | free when |
|---|---|---|---|
| the payload's | the producer's phases | the sender's copies | the last copy is complete |
| a range of the pool | the sender's copies | the receiver's copy, the consumer | acknowledged or not sent |
| the acknowledgement board | the receiver | the sender | the connector closes |
| the board of copied pieces, if any | the sender's stream, after each copy | both hosts | the connector closes |
| the receiver's own memory | the receiver's copies | the consumer | `Pending.release(after)` and `after` is done |

A payload that fits is one piece. In the first three quarters of the pool it is delivered as views of the pool.
Everything else is copied out of the pool at once. So the last quarter drains even if the consumer makes no progress, and a piece,
at most a quarter of the pool, fits there.

A piece is sent when its copy is complete; with a board of copied pieces, when it is launched, and it arrives once the
board has it. If the sender's process ends in between, that never happens: the engine aborts its requests.
"""

from omni.connector.pool.board import BOARD_BYTES, BOARD_CELLS, CopiedBoard, PoolPiece
from omni.connector.pool.ranges import RangeAllocator
from omni.connector.pool.receiver import PoolMemory, PoolPending, PoolReceiver, TensorMemory
from omni.connector.pool.sender import PoolRef, PoolSender

__all__ = [
    "BOARD_BYTES",
    "BOARD_CELLS",
    "CopiedBoard",
    "PoolMemory",
    "PoolPending",
    "PoolPiece",
    "PoolReceiver",
    "PoolRef",
    "PoolSender",
    "RangeAllocator",
    "TensorMemory",
]
