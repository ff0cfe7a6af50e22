"""Messages between two processes: every dtype and shape arrives as it was sent, whatever its way."""

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from omni.ipc import Channel, ChannelClosed, Codec, Typed
from omni.ipc.codec import INLINE_BYTES
from omni.ipc.memory import ALIGNMENT, OutputRing, map_memory
from tests.support.resources import open_files


class Meta(msgspec.Struct, frozen=True):
    name: str
    extra: NDArray[np.int64]


class Message(msgspec.Struct, frozen=True, tag=True):
    tensor: torch.Tensor | None = None
    array: NDArray[np.generic] | None = None
    meta: Typed[msgspec.Struct] | None = None
    text: str = ""


TestChannel = Channel[Message, Message]
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64),
]
SHAPES = [(), (0,), (3,), (0, 4), (5, 7), (2, 3, INLINE_BYTES)]


@contextmanager
def connected(ring_bytes: int = 0) -> Iterator[tuple[TestChannel, TestChannel]]:
    """Two ends; messages of the first may go through a ring."""
    sends, receives = Codec[Message](Message), Codec[Message](Message)
    if ring_bytes:
        descriptor, sends.ring = OutputRing.create(ring_bytes)
        receives.ring = OutputRing(map_memory(descriptor))
    first, second = Channel.pair()
    ends = Channel(first, sends, Codec[Message](Message)), Channel(second, Codec[Message](Message), receives)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def received(channel: TestChannel) -> Message:
    message = channel.receive()
    assert message is not None
    return message[0]


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.random.default_rng(size).integers(0, 2 if dtype is torch.bool else 256, size, np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("ring", [0, 2**20], ids=["memory", "ring"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_arrive_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...], ring: int):
    tensor = numbers(dtype, shape)
    with connected(ring) as (here, there):
        here.send(Message(tensor=tensor))
        other = received(there).tensor
        assert other is not None
        assert (other.dtype, other.shape, bits(other)) == (tensor.dtype, tensor.shape, bits(tensor))
        other.zero_()  # it may be written


def test_strided_and_overlapping_tensors_arrive_as_they_look():
    base = torch.arange(60_000).reshape(200, 300)
    for tensor in (base.T, base[::3, 5:7], base[:1].expand(50, 300)):
        with connected() as (here, there):
            here.send(Message(tensor=tensor))
            other = received(there).tensor
            assert other is not None
            assert torch.equal(other, tensor)


def test_structs_of_plugins_keep_their_type():
    meta = Meta("m", np.arange(5000))
    with connected() as (here, there):
        here.send(Message(meta=Typed(meta)))
        other = received(there).meta
        assert other is not None
        assert type(other.value) is Meta
        assert other.value.name == "m"
        assert np.array_equal(other.value.extra, meta.extra)


def test_long_messages_go_through_memory():
    with connected() as (here, there):
        here.send(Message(text="x" * 10**6, array=np.arange(10**5)))
        message = received(there)
        assert message.array is not None
        assert (message.text, message.array.sum()) == ("x" * 10**6, sum(range(10**5)))


def test_an_unsendable_message_is_refused_and_the_channel_lives():
    class Local(msgspec.Struct):
        pass

    bad = [
        (Message(array=np.array([object()])), "Python objects"),
        (Message(tensor=torch.empty(3, device="meta")), "a tensor on meta"),
        (Message(meta=Typed(Local())), "define it at the top of a module"),
    ]
    with connected() as (here, there):
        for message, problem in bad:
            with pytest.raises(TypeError, match=problem):
                here.send(message)
        here.send(Message(text="still here"))
        assert received(there).text == "still here"


def test_order_stays_at_any_size():
    with connected(2**18) as (here, there):
        sizes = [1, 10**5, 3, 2 * 10**4, 7 * 10**4, 2, 10**6]

        def send() -> None:
            for size in sizes * 5:
                here.send(Message(array=np.full(size, size % 251, np.uint8)))

        thread = threading.Thread(target=send)
        thread.start()
        for size in sizes * 5:
            array = received(there).array
            assert array is not None
            assert (len(array), int(array[0]), int(array[-1])) == (size, size % 251, size % 251)
        thread.join()


def test_a_full_ring_waits_for_no_one_and_is_used_again():
    descriptor, writer = OutputRing.create(4 * ALIGNMENT)
    reader = OutputRing(map_memory(descriptor))
    places = [writer.write(np.full(ALIGNMENT, n, np.uint8)) for n in range(4)]
    assert places == [0, ALIGNMENT, 2 * ALIGNMENT, 3 * ALIGNMENT]
    assert writer.write(np.zeros(1, np.uint8)) is None
    assert reader.read(0, ALIGNMENT).tolist() == [0] * ALIGNMENT
    assert writer.write(np.full(5, 9, np.uint8)) == 4 * ALIGNMENT
    assert writer.write(np.zeros(1, np.uint8)) is None
    for n, place in enumerate(places[1:], 1):
        assert place is not None
        assert reader.read(place, ALIGNMENT).tolist() == [n] * ALIGNMENT
    assert writer.write(np.zeros(4 * ALIGNMENT, np.uint8)) is None, "an array does not wrap"
    assert writer.write(np.full(3 * ALIGNMENT, 5, np.uint8)) == 5 * ALIGNMENT
    assert reader.read(4 * ALIGNMENT, 5).tolist() == [9] * 5


def test_a_slow_reader_gets_the_next_message_when_it_has_the_last():
    with connected() as (here, there):
        assert here.send(Message(text="first"), block=False)
        assert not here.send(Message(text="second"), block=False)
        assert received(there).text == "first"
        assert there.receive(block=False) is None
        assert here.send(Message(text="third"), block=False)
        assert received(there).text == "third"


def test_an_end_that_closes_is_noticed_by_both():
    with connected() as (here, there):
        here.send(Message(text="last"))
        here.close()
        assert received(there).text == "last"
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                there.receive()
        with pytest.raises(ChannelClosed):
            there.send(Message())
        with pytest.raises(ChannelClosed):
            here.send(Message(array=np.zeros(10**5)))


@pytest.mark.parametrize("block", [True, False])
def test_the_last_messages_of_an_end_that_closes_with_unread_ones_arrive(block: bool):
    with connected() as (here, there):
        there.send(Message(text="unread"))
        for text in ("cause", "last"):
            here.send(Message(text=text))
        here.close()
        for text in ("cause", "last"):
            message = there.receive(block=block)
            assert message is not None
            assert message[0].text == text
        with pytest.raises(ChannelClosed):
            there.receive(block=block)


def test_a_thread_that_waits_is_woken_by_shutdown():
    with connected() as (_, there):
        ended = threading.Event()

        def wait() -> None:
            with pytest.raises(ChannelClosed):
                there.receive()
            ended.set()

        threading.Thread(target=wait).start()
        there.shutdown()
        assert ended.wait(30)


def test_descriptors_return_to_their_number():
    gc.collect()
    before = open_files()
    with connected(2**16) as (here, there):
        for _ in range(50):
            reading, writing = os.pipe()
            here.send(Message(array=np.zeros(10**5, np.uint8), text="x" * 10**5), extra=writing)
            os.close(writing)
            message = there.receive()
            assert message is not None
            assert message[1] is not None
            os.write(message[1], b"through")
            os.close(message[1])
            assert os.read(reading, 10) == b"through"
            os.close(reading)
    del message, here, there
    gc.collect()
    assert open_files() == before
