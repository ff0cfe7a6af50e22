"""Messages between two processes of one host: structs through a socket, large arrays through shared memory."""

from omni.ipc.channel import Channel, ChannelClosed, Undecodable
from omni.ipc.codec import Codec, Typed

__all__ = ["Channel", "ChannelClosed", "Codec", "Typed", "Undecodable"]
