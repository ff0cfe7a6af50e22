"""The messages between two engines in processes of their own."""

import socket
from collections.abc import Callable, Sequence

import msgspec

from omni.engine.peer_messages import LinkClosed, PeerMessage, lost_piece
from omni.ipc import Channel, ChannelClosed, Codec, Undecodable
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """Encoded messages, in order."""

    messages: list[bytes]


class ChannelLink:
    """A `Link` through a socket. The messages of a turn are one packet.

    A message is encoded when it is added, so one that cannot be sent fails its own request.
    """

    def __init__(self, end: socket.socket, on_close: Callable[[int], object]) -> None:
        """on_close: called with the descriptor, before it is closed."""
        self._channel: Channel[_Batch, _Batch] = Channel(end, Codec(_Batch), Codec(_Batch))
        self._codec: Codec[PeerMessage] = Codec(PeerMessage, inline_bytes=None)
        self._unsent: list[bytes] = []
        self._on_close = on_close
        self._closed = False

    @property
    def descriptor(self) -> int:
        return self._channel.descriptor

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: PeerMessage) -> None:
        if not self._closed:
            self._unsent.append(self._codec.encode(message)[0])

    def flush(self) -> None:
        if not self._unsent:
            return
        try:
            if self._channel.send(_Batch(self._unsent), block=False):
                self._unsent = []
        except ChannelClosed:
            self._unsent = []  # `take` reports it
        except OSError as error:  # no memory or descriptor is free: the next turn tries again
            _log.debug("messages to another engine wait: %s", error)

    def take(self) -> Sequence[PeerMessage]:
        try:
            # One packet: after it may come the next, and so on, from an engine that is faster than this one.
            received = self._channel.receive(block=False)
            return [self._decoded(body) for body in received[0].messages] if received is not None else []
        except ChannelClosed as error:
            raise LinkClosed(str(error)) from error
        except (Undecodable, msgspec.MsgspecError, ImportError, TypeError) as error:
            _log.exception("a message of another engine cannot be read")
            raise LinkClosed(str(error)) from error

    def _decoded(self, body: bytes) -> PeerMessage:
        try:
            return self._codec.decode(body, None)
        except Exception as error:
            lost = lost_piece(body, error)
            if lost is None:
                raise
            return lost

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._unsent = []
            self._on_close(self._channel.descriptor)
            self._channel.close()
