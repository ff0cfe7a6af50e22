"""Bytes of a connection, in pieces that take the event loop a short time each."""

import asyncio
import time

_LEAST, _MOST = 2**9, 2**18
_LONG_SECONDS = 4e-3


class FairReads(asyncio.BufferedProtocol):
    """Feeds a protocol of `data_received` in pieces. asyncio gives up to 256 KiB at once, which may be 40,000 frames or chunks of a
    few bytes: parsing them would delay all clients for a second. After a piece that took long, less is read at once; otherwise
    more."""

    _size = 2**12
    _buffer = bytearray()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(self._size)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(self._buffer)[:nbytes])
        # A connection that waits holds no buffer.
        self._buffer = bytearray()
        since = time.perf_counter()
        self.data_received(data)
        took_long = time.perf_counter() - since > _LONG_SECONDS
        self._size = max(_LEAST, self._size // 4) if took_long else min(_MOST, self._size * 2)

    def eof_received(self) -> None:
        """The connection is closed."""

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError
