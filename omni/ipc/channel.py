"""A socket pair between two processes: whole messages, each with up to two descriptors of shared memory."""

import array
import errno
import fcntl
import os
import socket
import struct
import termios
import threading
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from omni.ipc.codec import Codec
from omni.ipc.memory import create_memory, map_memory
from omni.utils.sockets import packet_pair

SendT = TypeVar("SendT")
ReceiveT = TypeVar("ReceiveT")

_PACKET_BYTES = 2**16
"""Longest message body in the socket, whose buffer is about 200 KiB. A longer body goes through shared memory."""

_INLINE, _SHARED = b"i", b"s"
"""First byte of a packet: the place of its body."""


_ANCILLARY_BYTES = socket.CMSG_SPACE(3 * array.array("i").itemsize)


_CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EBADF)


class ChannelClosed(Exception):
    """The other process closed its end, or ended."""


class Undecodable(Exception):
    """A message arrived that cannot be decoded. raw: its tag and fields, without arrays and structs of plugins; empty if these are
    unknown too."""

    def __init__(self, raw: list[Any], error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.raw = raw


class Channel(Generic[SendT, ReceiveT]):
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket, sends: Codec[SendT], receives: Codec[ReceiveT]) -> None:
        self._socket = end
        self._sends = sends
        self._receives = receives
        self._sending = threading.Lock()

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Two connected ends: see `packet_pair`."""
        return packet_pair()

    @property
    def descriptor(self) -> int:
        """A descriptor for `select`: readable when a message has arrived, or when the other end is closed."""
        return self._socket.fileno()

    def send(self, message: SendT, extra: int | None = None, *, block: bool = True) -> bool:
        """Sends a message. extra: a further descriptor for the receiver, which stays the caller's.

        block: whether to wait for a place in the socket's buffer. Otherwise the message is sent only if the other side has received
        all earlier ones, so that a slow side gets few long messages instead of many short ones. Returns whether it was sent. Raises
        ChannelClosed, TypeError for values that cannot be sent, BlockingIOError after the time limit of a socket that has one, and
        OSError if the system lacks memory or descriptors; then nothing was sent.
        """
        with self._sending:
            if not block and self._unread():
                return False
            self._send(message, extra)
            return True

    def offer(self, message: SendT, extra: int | None = None) -> bool:
        """Sends a message as `send` does, unless the socket's buffer has no place for it. Returns whether it was sent."""
        with self._sending, suppress(BlockingIOError):
            self._send(message, extra, socket.MSG_DONTWAIT)
            return True
        return False

    def _send(self, message: SendT, extra: int | None, flags: int = 0) -> None:
        body, memory = self._sends.encode(message)
        owned = [memory] if memory is not None else []
        try:
            first = _INLINE
            if len(body) > _PACKET_BYTES:
                descriptor, mapping = create_memory(len(body), "omni-body")
                mapping[:] = body
                owned.insert(0, descriptor)
                body, first = b"", _SHARED
            passed = array.array("i", owned if extra is None else [*owned, extra])
            # One byte for each purpose: the number of descriptors does not show their purposes.
            purposes = bytes([memory is not None, extra is not None])
            # Not `socket.send_fds`: Python 3.11's does not pass its flags on.
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
            self._socket.sendmsg([first, purposes, body], ancillary, flags)
        except OSError as error:
            if error.errno in _CLOSED:
                raise ChannelClosed(str(error)) from error
            raise
        finally:
            for descriptor in owned:
                os.close(descriptor)

    def receive(self, *, block: bool = True) -> tuple[ReceiveT, int | None] | None:
        """The next message and its further descriptor, which becomes the caller's; None before one has arrived.

        Raises ChannelClosed, and Undecodable for a message that is lost.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if block else socket.MSG_DONTWAIT)
        try:
            packet, ancillary = self._receive_packet(flags)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not packet:
            raise ChannelClosed("the other end is closed")
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data)
        left = list(descriptors)
        body, shared = packet[3:], packet[:1] == _SHARED
        if len(left) < shared + packet[1] + packet[2]:
            for descriptor in left:
                os.close(descriptor)
            raise Undecodable(_raw(body), OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        if shared:
            body = bytes(map_memory(left.pop(0)))
        memory = left.pop(0) if packet[1] else None
        extra = left.pop(0) if packet[2] else None
        try:
            return self._receives.decode(body, memory), extra
        except Exception as error:
            if extra is not None:
                os.close(extra)
            raise Undecodable(_raw(body), error) from error

    def _receive_packet(self, flags: int) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        # Not `socket.recv_fds`: Python 3.11's does not pass its flags on.
        with suppress(ConnectionResetError):
            return self._socket.recvmsg(_PACKET_BYTES + 3, _ANCILLARY_BYTES, flags)[:2]
        # The other end was closed before it had received all messages. The system reports that once, before it gives the messages
        # that were sent earlier; the last of them may have the cause.
        return self._socket.recvmsg(_PACKET_BYTES + 3, _ANCILLARY_BYTES, flags)[:2]

    def shutdown(self) -> None:
        """Ends the connection. Messages that have arrived can still be received; then both sides get ChannelClosed. Any thread."""
        with suppress(OSError):  # ended or closed before
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and frees the descriptor, once no thread receives. Idempotent."""
        with self._sending:
            self._socket.close()

    def _unread(self) -> int:
        """Bytes that the other side has not received yet."""
        try:
            return int(struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
        except OSError as error:
            raise ChannelClosed(str(error)) from error


def _raw(body: bytes) -> list[Any]:
    try:
        raw = msgspec.msgpack.decode(body, ext_hook=lambda code, data: None)
    except msgspec.MsgspecError:
        return []
    return raw if isinstance(raw, list) else []
