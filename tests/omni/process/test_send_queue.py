"""Messages to an engine's process that reads none."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from omni.errors import StageError
from omni.ipc import Channel, ChannelClosed, Codec
from omni.process.errors import ErrorData
from omni.process.messages import AbortSubmitted, Connect, GetState, ToEngine
from omni.process.send_queue import SendQueue
from tests.support.echo_family import eventually
from tests.support.resources import open_files

LARGE = ErrorData.of(StageError("s", "running", "x" * 50_000))


class Reader:
    """The process: reads messages when it is asked to."""

    def __init__(self, channel: Channel[ToEngine, ToEngine]) -> None:
        self._channel = channel

    def read(self) -> ToEngine:
        received = self._channel.receive()
        assert received is not None
        message, extra = received
        if extra is not None:
            os.close(extra)
        return message


@contextmanager
def opened(errors: list[tuple[ToEngine, str]]) -> Iterator[tuple[SendQueue, Reader, Channel[ToEngine, ToEngine]]]:
    first, second = Channel.pair()
    ends = [Channel(end, Codec[ToEngine](ToEngine), Codec[ToEngine](ToEngine)) for end in (first, second)]
    try:
        yield SendQueue(ends[0], lambda message, error: errors.append((message, str(error)))), Reader(ends[1]), ends[1]
    finally:
        ends[1].close()
        assert eventually(lambda: "omni-sender" not in {thread.name for thread in threading.enumerate()})
        ends[0].close()


def aborts(count: int) -> list[AbortSubmitted]:
    return [AbortSubmitted(f"r{number}", LARGE, number) for number in range(count)]


def test_messages_wait_for_no_reader_and_keep_their_order():
    with opened([]) as (queue, reader, _):
        for round_ in range(3):
            for message in aborts(20):
                queue.send(message)
            queue.send(GetState(round_))
            assert [reader.read() for _ in range(21)] == [*aborts(20), GetState(round_)]


def test_a_descriptor_waits_with_its_message():
    before = open_files()
    with opened([]) as (queue, reader, _):
        for message in aborts(20):
            queue.send(message)
        reading, writing = os.pipe()
        queue.send(Connect(7, "cpu"), writing)
        os.close(writing)
        assert [reader.read() for _ in range(21)][-1] == Connect(7, "cpu")
        assert os.read(reading, 1) == b""
        os.close(reading)
    assert eventually(lambda: open_files() == before)


def test_an_error_of_a_message_that_waited_is_reported():
    errors: list[tuple[ToEngine, str]] = []
    odd = Connect(object(), "cpu")  # type: ignore[arg-type]
    with opened(errors) as (queue, reader, _):
        with pytest.raises(TypeError):
            queue.send(odd)
        for message in aborts(20):
            queue.send(message)
        queue.send(odd)
        queue.send(GetState(1))
        assert [reader.read() for _ in range(21)] == [*aborts(20), GetState(1)]
    assert [(message, "cannot be sent" in error) for message, error in errors] == [(odd, True)]


def test_messages_that_wait_are_dropped_with_the_process():
    before = open_files()
    errors: list[tuple[ToEngine, str]] = []
    with opened(errors) as (queue, _, other):
        for message in aborts(20):
            queue.send(message)
        reading, writing = os.pipe()
        queue.send(Connect(7, "cpu"), writing)
        os.close(writing)
        other.close()
        assert os.read(reading, 1) == b"", "its copy is closed"
        os.close(reading)
        with pytest.raises(ChannelClosed):
            queue.send(GetState(1))
    assert errors == []
    assert eventually(lambda: open_files() == before)
