"""Socket pairs between two processes."""

import fcntl
import socket
import struct

_SECONDS = struct.Struct("ll")


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected ends. A packet arrives whole or not at all, and their order stays."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return _above_standard(first), _above_standard(second)


def limit_wait(end: socket.socket, option: int, seconds: float) -> None:
    """After these seconds, the system's blocking calls raise BlockingIOError. option: `SO_RCVTIMEO` or `SO_SNDTIMEO`."""
    whole, part = divmod(seconds, 1)
    end.setsockopt(socket.SOL_SOCKET, option, _SECONDS.pack(int(whole), int(part * 1e6)))


def _above_standard(end: socket.socket) -> socket.socket:
    """The socket with a descriptor above 2: where a program has closed one of those, the other process would write its standard
    output into the channel."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
