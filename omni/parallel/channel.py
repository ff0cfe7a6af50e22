"""Messages from rank 0 of a stage to the others, through sockets."""

import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from omni.errors import LostRankError
from omni.ipc import Channel, ChannelClosed, Codec, Undecodable
from omni.utils.sockets import limit_wait


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """number: its number among those of all stages from one engine to another."""

    number: int
    body: bytes


class _Goodbye(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Rank 0 closes the channel after its last message."""


_Sent = _Message | _Goodbye


@dataclass(slots=True)
class MessageCounter:
    """The number of the next message from one engine to another. The channels of all stages between them share it, at both ends:
    so steps of different stages, whose collectives could otherwise wait for each other, begin in one order on all devices."""

    next: int = 0


def _open(end: socket.socket) -> Channel[_Sent, _Sent]:
    return Channel(end, Codec(_Sent), Codec(_Sent))


class SendingChannel:
    """The `RankChannel` of rank 0. A message of more than 64 KiB passes through shared memory."""

    descriptor = None

    def __init__(
        self, ends: Mapping[int, socket.socket], counters: Mapping[int, MessageCounter], seconds: float
    ) -> None:
        """ends, counters: by rank of the other end. seconds: a rank whose buffer (about 200 KiB) is full counts
        as lost if it reads no message in this time."""
        self._seconds = seconds
        self._counters = counters
        for end in ends.values():
            limit_wait(end, socket.SO_SNDTIMEO, seconds)
        self._channels = {rank: _open(end) for rank, end in ends.items()}

    def send(self, message: bytes) -> None:
        for rank, channel in self._channels.items():
            counter = self._counters[rank]
            try:
                channel.send(_Message(counter.next, message))
            except ChannelClosed as error:
                raise LostRankError(f"rank {rank} has ended") from error
            except BlockingIOError as error:
                raise LostRankError(f"rank {rank} has taken no message for {self._seconds:g} s") from error
            counter.next += 1

    def take(self) -> bytes | None:
        """None: the others send nothing."""
        return None

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            with suppress(ChannelClosed, BlockingIOError):  # a rank that has ended, or reads no message
                channel.send(_Goodbye())
            channel.close()


class ReceivingChannel:
    """The `RankChannel` of another rank."""

    def __init__(self, end: socket.socket, counter: MessageCounter) -> None:
        self._channel = _open(end)
        self._counter = counter
        self._arrived: deque[_Message] = deque()
        self._ended = False

    @property
    def descriptor(self) -> int:
        return self._channel.descriptor

    def send(self, message: bytes) -> None:
        raise AssertionError("only rank 0 sends")

    def take(self) -> bytes | None:
        try:
            self._receive()
        except (ChannelClosed, Undecodable) as error:
            if not self._arrived:
                raise LostRankError("rank 0 has ended" if isinstance(error, ChannelClosed) else str(error)) from error
        if not self._arrived or self._arrived[0].number != self._counter.next:
            return None
        self._counter.next += 1
        return self._arrived.popleft().body

    def _receive(self) -> None:
        while not self._ended:
            match self._channel.receive(block=False):
                case None:
                    return
                case _Message() as message, _:
                    self._arrived.append(message)
                case _Goodbye(), _:
                    self._ended = True

    def close(self) -> None:
        self._ended = True
        self._channel.close()
