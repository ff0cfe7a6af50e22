"""Payloads between two processes: one-way time, and bytes per second with several under way, by connector and size; and
the hop between two stages of one engine.

    python benchmarks/connectors.py [--connectors shm cuda_ipc] [--places cuda:0 cuda:0] [--sizes 4K 64K 4M 64M 256M]
                                    [--in-flight 8] [--count 200] [--pool 64M] [--json FILE]
    python benchmarks/connectors.py --connectors local [--shape qwen2.5-omni-7b] [--tokens 256] [--requests 1 4]
    python benchmarks/connectors.py --connectors local --device cpu --shape tiny-qwen2.5-omni --tokens 24

The producer is this process, the consumer another; each runs the loop of an otherwise idle engine. A payload is one
tensor. One way: from `Sender.send` of a payload that is ready until the consumer may launch work on it, one payload at a time, by
the clock that the processes share. Bytes per second: `--in-flight` payloads at a time; the consumer reads the first 4 KiB of each
before it releases it. Beside it, a plain copy of torch between the two devices, bytes moved once: the share is of that.

The connector `local` moves references in an engine, so it is measured in one: Qwen2.5-Omni with dummy weights, its whole
pipeline, on the first place. The thinker sends the hidden state of every token to the talker, whose next steps add it to
their input. Counted are the payloads handed over while both decode. `bench/local_hop.py` defines the hop: from the
producer's event to the consumer's launch, as an interval, since the host learns of the event by polling. The engine is in
a thread of this process, whose other threads wait. With several requests, the rows of both stages decode in batches.

Each step and its seconds are printed to standard error, the tables at the end. The load takes most of the time where no
kernel of the shape is compiled yet: `start.py` measures it.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from bench.arguments import device_here, output_file, positive_int
from bench.local_hop import HopTimes, times_of, watched_hops, while_both_decode
from bench.report import environment, print_facts, print_table, reported, write_json
from omni import Omni, SamplingParams
from omni.connector import Connector, EdgeEnd, Pending, Received, Ref
from omni.device import Device, Event, open_device
from omni.engine import ConnectorSelector
from omni.ipc import Channel, ChannelClosed, Codec, Typed
from omni.payload import Encoded, Payload
from omni.pipeline import Edge
from omni.plugin.manager import load_plugins
from shapes import SHAPES

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_READ = 4096
_PATIENCE = 60


class ToConsumer(msgspec.Struct, array_like=True):
    """address: of the sender, first. pieces: with the numbers of their payloads."""

    address: Typed[msgspec.Struct] | None
    pieces: list[tuple[int, Typed[msgspec.Struct]]]


class ToProducer(msgspec.Struct, array_like=True):
    """took: nanoseconds of one way of released payloads."""

    took: list[int]


@dataclass(frozen=True, slots=True)
class ConnectorRun:
    """share: of a plain copy."""

    connector: str
    bytes: int
    one_way_p50_us: float
    one_way_p99_us: float
    gigabytes_per_second: float
    share: float


def number_of_bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    return int(text.rstrip("KMGkmg")) * unit


def fill(tensor: Tensor) -> None:
    tensor.random_(0, 256)


def read(into: Tensor, tensor: Tensor) -> None:
    into.copy_(tensor[: len(into)], non_blocking=True)


class PayloadProducer:
    """One run: a connector and a size."""

    def __init__(self, connector: Connector, name: str, device: Device, other: str, pool: int) -> None:
        self._device = device
        self._stream = device.stream("produce")
        self._sender = connector.sender(EdgeEnd("bench", device, pool))
        ours, theirs = Channel.pair()
        self._channel: Channel[ToConsumer, ToProducer] = Channel(ours, Codec(ToConsumer), Codec(ToProducer))
        command = [sys.executable, __file__, "--consumer", str(theirs.fileno()), name, other, str(pool)]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        address = self._sender.address
        assert isinstance(address, msgspec.Struct)
        self._channel.send(ToConsumer(Typed(address), []))
        if self._channel.receive() is None:
            raise RuntimeError("the consumer did not start")
        self._number = 0

    def run(self, nbytes: int, count: int, in_flight: int) -> tuple[list[int], float]:
        """One-way nanoseconds of each payload, and the seconds of all."""
        tensors = [self._device.empty((nbytes,), torch.uint8, self._stream) for _ in range(in_flight)]
        for tensor in tensors:
            self._device.launch(self._stream, fill, tensor)
        self._device.synchronize()
        ready = self._device.record(self._stream)
        free = deque(tensors)
        sending: deque[tuple[int, Ref]] = deque()
        using: deque[tuple[Ref, Tensor]] = deque()
        took: list[int] = []
        sent = 0
        began = time.perf_counter()
        while len(took) < count:
            while sent < count and free and sent - len(took) < in_flight:
                payload = Payload(Encoded(index=time.perf_counter_ns()), {"data": free[0]})
                ref = self._sender.send(payload, ready)
                sending.append((self._number, ref))
                using.append((ref, free.popleft()))
                self._number += 1
                sent += 1
            self._pass_on(sending)
            while using and using[0][0].freed:
                free.append(using.popleft()[1])
            while (answer := self._channel.receive(block=False)) is not None:
                took += answer[0].took
            if time.perf_counter() - began > _PATIENCE:
                raise RuntimeError(f"{len(took)} of {count} payloads of {nbytes:,} bytes arrived in {_PATIENCE} s")
        return took, time.perf_counter() - began

    def close(self) -> None:
        self._channel.close()
        self._process.wait(_PATIENCE)
        self._sender.close()

    def _pass_on(self, sending: "deque[tuple[int, Ref]]") -> None:
        pieces: list[tuple[int, Typed[msgspec.Struct]]] = []
        for number, ref in list(sending):
            for piece in ref.pieces():
                assert isinstance(piece, msgspec.Struct)
                pieces.append((number, Typed(piece)))
            if ref.sent:
                sending.remove((number, ref))
        if pieces:
            self._channel.send(ToConsumer(None, pieces))


def consume(descriptor: int, name: str, place: str, pool: int) -> None:
    device = open_device(place)
    stream = device.stream("consume")
    into = device.empty((_READ,), torch.uint8, stream)
    connector = _connector(name, place, place)
    channel: Channel[ToProducer, ToConsumer] = Channel(
        socket.socket(fileno=descriptor), Codec(ToProducer), Codec(ToConsumer)
    )
    first = channel.receive()
    assert first is not None
    assert first[0].address is not None
    receiver = connector.receiver(EdgeEnd("bench", device, pool), first[0].address.value)
    channel.send(ToProducer([]))
    pending: dict[int, Pending] = {}
    arrived: deque[tuple[Pending, Received]] = deque()
    reading: deque[tuple[int, Event]] = deque()
    while True:
        while (message := channel.receive(block=False)) is not None:
            for number, piece in message[0].pieces:
                if number in pending:
                    pending[number].add(piece.value)
                else:
                    pending[number] = receiver.receive(piece.value)
        for number, each in list(pending.items()):
            received = each.poll()
            if received is not None:
                arrived.append((pending.pop(number), received))
        while arrived and arrived[0][1].ready.done():
            each, received = arrived.popleft()
            assert isinstance(received.payload.meta, Encoded)  # its index is the time at which it was sent
            took = time.perf_counter_ns() - received.payload.meta.index
            device.launch(stream, read, into, received.payload.tensors["data"])
            after = device.record(stream)
            each.release(after)
            reading.append((took, after))
        receiver.tick()
        done = []
        while reading and reading[0][1].done():
            done.append(reading.popleft()[0])
        if done:
            channel.send(ToProducer(done))


def plain_copy(first: Device, second: Device, nbytes: int) -> float:
    """Bytes per second of torch's copy from one device to the other."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=first.torch_device)
    into = torch.zeros(nbytes, dtype=torch.uint8, device=second.torch_device)
    times = []
    for _ in range(10):
        second.synchronize()
        began = time.perf_counter()
        for _ in range(8):
            into.copy_(source, non_blocking=True)
        first.synchronize()
        second.synchronize()
        times.append(time.perf_counter() - began)
    return 8 * nbytes / statistics.median(times)


def _connector(name: str, producer: str, consumer: str) -> Connector:
    edge = Edge(producer="a", consumer="b", connector=name)
    return ConnectorSelector(load_plugins()).choose(edge, producer, consumer).connector


def measure(name: str, arguments: argparse.Namespace) -> list[ConnectorRun]:
    first, second = arguments.places
    devices = open_device(first), open_device(second)
    producer = PayloadProducer(_connector(name, first, second), name, devices[0], second, arguments.pool)
    runs = []
    try:
        for nbytes in arguments.sizes:
            with reported(f"{name}, {nbytes:,} bytes"):
                producer.run(nbytes, 20, arguments.in_flight)
                alone, _ = producer.run(nbytes, arguments.count, 1)
                count = max(16, min(arguments.count, 2**34 // nbytes))
                _, seconds = producer.run(nbytes, count, arguments.in_flight)
            rate = count * nbytes / seconds
            microseconds = sorted(took / 1000 for took in alone)
            p50, p99 = statistics.median(microseconds), microseconds[int(len(alone) * 0.99) - 1]
            runs.append(ConnectorRun(name, nbytes, p50, p99, rate / 1e9, rate / plain_copy(*devices, nbytes)))
    finally:
        producer.close()
    return runs


def measure_hops(device: str, shape: str, tokens: int, requests: Sequence[int]) -> list[HopTimes]:
    """The hops from thinker to talker, with so many requests at once; the model is loaded once."""
    overrides = {"engine.process": "thread"}
    found = []
    with tempfile.TemporaryDirectory() as folder, watched_hops() as hops:
        SHAPES[shape](Path(folder))
        with reported(f"loading {shape} on {device}"):
            omni = Omni(folder, load_format="dummy", device=device, overrides=overrides)
        with omni:
            for count in requests:
                for turn, what in enumerate(("warm-up", "measured")):
                    for edge in hops.values():
                        edge.clear()
                    with reported(f"{count} at once, {what}"):
                        answer(
                            omni, tokens, [f"Tell me about the number {1000 * turn + index}." for index in range(count)]
                        )
                both = while_both_decode(hops["thinker->talker"], hops["talker->token2wav"])
                found.append(times_of("thinker->talker", count, both))
    return found


def answer(omni: Omni, tokens: int, chats: list[str]) -> None:
    """Raises the error of a request that fails."""
    talk = {
        "thinker": SamplingParams(max_tokens=tokens, temperature=1.0, seed=1, ignore_eos=True),
        "talker": SamplingParams(max_tokens=2 * tokens, seed=1, ignore_eos=True),
    }
    results = omni.generate(chats, modalities=("text", "audio"), sampling=talk, stream=False)
    assert isinstance(results, list)
    for result in results:
        if result.error is not None:
            raise result.error


def print_hops(hops: Sequence[HopTimes]) -> None:
    header = (
        "edge",
        "requests",
        "hops",
        "at least p50, us",
        "p99",
        "at most p50, us",
        "p99",
        "late",
        "round p50, us",
        "p99",
    )
    rows = [
        (h.edge, h.requests, h.hops, f"{h.least_p50:.1f}", f"{h.least_p99:.0f}", f"{h.most_p50:.1f}", f"{h.most_p99:.0f}",
         f"{h.late:.0%}", f"{h.turn_p50:.0f}", f"{h.turn_p99:.0f}")
        for h in hops
    ]  # fmt: skip
    print_table(header, rows)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--consumer"]:
        descriptor, name, place, pool = arguments[1:]
        with torch.inference_mode(), suppress(ChannelClosed):
            consume(int(descriptor), name, place, int(pool))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connectors", nargs="+", default=["shm", "cuda_ipc"])
    here = device_here("--places cpu cpu")
    parser.add_argument("--places", nargs=2, type=here)
    parser.add_argument(
        "--sizes", nargs="+", type=number_of_bytes, default=[4 * 2**10, 2**16, 2**20, 2**22, 2**26, 2**28]
    )
    parser.add_argument("--in-flight", type=positive_int, default=8)
    parser.add_argument("--count", type=positive_int, default=200)
    parser.add_argument("--pool", type=number_of_bytes, default=Edge(producer="a", consumer="b").pool_bytes)
    parser.add_argument("--device", type=here, default="cuda:0", help="both places")
    parser.add_argument("--shape", choices=("qwen2.5-omni-7b", "qwen2.5-omni-3b", "tiny-qwen2.5-omni"))
    parser.add_argument("--tokens", type=positive_int, default=256)
    parser.add_argument("--requests", type=positive_int, nargs="+", default=[1, 4])
    parser.add_argument("--json", type=output_file)
    chosen = parser.parse_args(arguments)
    chosen.places = chosen.places or [here(chosen.device)] * 2
    facts = environment() | {"places": " -> ".join(chosen.places), "pool": f"{chosen.pool:,} bytes"}
    shape = chosen.shape or "qwen2.5-omni-7b"
    local = "local" in chosen.connectors
    if local:
        facts["shape"] = shape
    print_facts(facts)
    hops: list[HopTimes] = []
    if local:
        hops = measure_hops(chosen.places[0], shape, chosen.tokens, chosen.requests)
    with torch.inference_mode():
        runs = [run for name in chosen.connectors if name != "local" for run in measure(name, chosen)]
    if hops:
        print_hops(hops)
    header = ("connector", "bytes", "one way p50, us", "p99, us", "GB/s", "share of a plain copy")
    rows = [
        (r.connector, f"{r.bytes:,}", f"{r.one_way_p50_us:.0f}", f"{r.one_way_p99_us:.0f}",
         f"{r.gigabytes_per_second:.2f}", f"{r.share:.0%}")
        for r in runs
    ]  # fmt: skip
    if runs:
        print_table(header, rows)
    if chosen.json is not None:
        write_json(chosen.json, [asdict(hop) for hop in hops] + [asdict(run) for run in runs], facts)


if __name__ == "__main__":
    main(sys.argv[1:])
