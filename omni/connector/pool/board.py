"""What the two ends of a pool agree on: its pieces, and the board that acknowledges them."""

import msgspec

from omni.connector.pieces import PayloadLayout

BOARD_SLOTS = 1024
"""Pieces of one sender under way at most."""
BOARD_BYTES = BOARD_SLOTS * 8
LARGEST_PART = 4
"""A piece is at most this part of the pool, so that it fits into what the receiver leaves."""


class PoolPiece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `offset` to `offset + nbytes` of a payload, from byte `start` of the pool.

    slot, number: `number` in `slot` of the board acknowledges the piece.
    layout: of the payload, with its first piece. pieces: of the payload; 0 if it has no bytes.
    """

    slot: int
    number: int
    start: int
    offset: int
    nbytes: int
    layout: PayloadLayout | None = None
    pieces: int = 0
