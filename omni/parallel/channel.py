"""Messages from rank 0 of a stage to the others, through sockets."""

import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from omni.errors import LostRankError
from omni.ipc import Channel, ChannelClosed, Codec, Undecodable

_SECONDS = struct.Struct("ll")


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    body: bytes


class _Goodbye(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Rank 0 closes the channel, and nothing was lost."""


_Sent = _Message | _Goodbye


def _open(end: socket.socket) -> Channel[_Sent, _Sent]:
    return Channel(end, Codec(_Sent), Codec(_Sent))


class SendingChannel:
    """The `RankChannel` of rank 0. A message of more than 64 KiB passes through shared memory."""

    descriptor = None

    def __init__(self, ends: Mapping[int, socket.socket], seconds: float) -> None:
        """ends: by rank of the other end. seconds: time after which a rank that has read none of about 200 KiB of messages counts
        as lost."""
        self._seconds = seconds
        for end in ends.values():
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SECONDS.pack(int(seconds), 0))
        self._channels = {rank: _open(end) for rank, end in ends.items()}

    def send(self, message: bytes) -> None:
        for rank, channel in self._channels.items():
            try:
                channel.send(_Message(message))
            except ChannelClosed as error:
                raise LostRankError(f"rank {rank} has ended") from error
            except BlockingIOError as error:
                raise LostRankError(f"rank {rank} has taken no message for {self._seconds:g} s") from error

    def take(self) -> Sequence[bytes]:
        """None: the others send nothing."""
        return ()

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            with suppress(ChannelClosed, BlockingIOError):  # one that has ended, or takes no message
                channel.send(_Goodbye())
            channel.close()


class ReceivingChannel:
    """The `RankChannel` of another rank."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = _open(end)
        self._ended = False

    @property
    def descriptor(self) -> int:
        return self._channel.descriptor

    def send(self, message: bytes) -> None:
        raise AssertionError("only rank 0 sends")

    def take(self) -> Sequence[bytes]:
        taken: list[bytes] = []
        while not self._ended:
            try:
                received = self._channel.receive(block=False)
            except (ChannelClosed, Undecodable) as error:
                if taken:
                    return taken  # the next call raises
                raise LostRankError("rank 0 has ended" if isinstance(error, ChannelClosed) else str(error)) from error
            match received:
                case None:
                    return taken
                case _Message(body), _:
                    taken.append(body)
                case _Goodbye(), _:
                    self._ended = True
        return taken

    def close(self) -> None:
        self._ended = True
        self._channel.close()
