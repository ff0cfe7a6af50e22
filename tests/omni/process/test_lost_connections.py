"""The connection of two engines ends, and both run: one is started again, and every request has a result or an error."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omni import Omni
from omni.errors import LostPeerError
from omni.ipc import Channel
from omni.utils.sockets import packet_pair
from tests.omni.process.engines import WRITER, assert_answers, children, group_of, opened_apart, pids_of
from tests.support.echo_family import eventually
from tests.support.echo_omni import ENDLESS, assert_nothing_held

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture(scope="module")
def connections() -> Iterator[list[socket.socket]]:
    """Of the user's process and the engines, and between engines, in the order in which they are made."""
    made: list[socket.socket] = []

    def noting(
        make: Callable[[], tuple[socket.socket, socket.socket]],
    ) -> Callable[[], tuple[socket.socket, socket.socket]]:
        def pair() -> tuple[socket.socket, socket.socket]:
            ends = make()
            made.append(ends[0].dup())
            return ends

        return pair

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "pair", noting(Channel.pair))
        patch.setattr("omni.process.child.packet_pair", noting(packet_pair))
        yield made
    for end in made:
        end.close()


@pytest.fixture(scope="module")
def lasting(model: Path, connections: list[socket.socket]) -> Iterator[Omni]:
    with opened_apart(model, {"engine.restarts": 1000}) as omni:
        assert len(connections) == 3
        yield omni


@pytest.fixture
def omni(lasting: Omni) -> Iterator[Omni]:
    """Both engines run without held memory, before and after. One of them was started again."""
    assert_answers(lasting)
    # A message of that request would hide the end of the connection for a turn, in which the writer gives text out.
    assert_nothing_held(lasting)
    pids = dict(pids_of(lasting))
    yield lasting
    assert_answers(lasting)
    assert sum(pid != pids[place] for place, pid in pids_of(lasting).items()) == 1
    assert_nothing_held(lasting)


def end_last(connections: list[socket.socket]) -> None:
    """Ends the connection of the engines, which is made after those of each engine and the user's process."""
    connections[-1].shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("given", [False, True])
def test_requests_run_after_a_lost_connection(omni: Omni, connections: list[socket.socket], given: bool):
    writer = pids_of(omni)[WRITER]
    if not given:
        os.kill(writer, signal.SIGSTOP)
    stream = omni.generate("abc", sampling=ENDLESS if given else None)
    if given:
        next(stream)
    else:
        assert eventually(lambda: group_of(omni)._supervisor.by_place[WRITER].engine.requests == 1)
    end_last(connections)
    os.kill(writer, signal.SIGCONT)
    if given:
        with pytest.raises(LostPeerError):
            list(stream)
    else:
        assert "".join(output.text for output in stream) == "abc"


def test_a_lost_connection_is_restored_without_requests(omni: Omni, connections: list[socket.socket]):
    pids = set(pids_of(omni).values())
    end_last(connections)
    assert eventually(lambda: len(pids - children()) == 1)
