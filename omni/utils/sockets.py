"""Socket pairs between two processes."""

import fcntl
import socket


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected ends. A packet arrives whole or not at all, and their order stays."""
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return _above_standard(first), _above_standard(second)


def _above_standard(end: socket.socket) -> socket.socket:
    """The socket with a descriptor above 2: where a program has closed one of those, the other process would write its standard
    output into the channel."""
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))
