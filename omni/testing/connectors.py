"""The conformance suite of connectors: `check_connector`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from omni.connector import Connector, Pending, Reach, Received, Ref
from omni.device import COMPLETED, Device, Event, Stream
from omni.errors import OmniError
from omni.payload import PageSlice, Payload

_PATIENCE_SECONDS = 10.0
_MAX_QUERIES = 50_000
AnswerT = TypeVar("AnswerT")


def check_connector(factory: Callable[[], Connector], device: Device) -> None:
    """Raises AssertionError, which names the broken promise, if connectors made by `factory` break the contract of
    `omni.connector` for payloads on `device`. The calling thread drives both ends."""
    for check in (
        _payloads_arrive_whole,
        _nothing_arrives_before_it_is_ready,
        _raw_tensors_are_not_copied,
        _release_frees_after_its_event,
        _abort_frees,
        _abort_after_release_changes_nothing,
    ):
        connector = factory()
        check(_Bench(connector, device, device.stream("check")))
        connector.close()
        connector.close()


class Gate:
    """An event that the test completes. A call that polls it in a loop fails the test."""

    def __init__(self) -> None:
        self.open = False
        self._queries = 0

    def done(self) -> bool:
        self._queries += 1
        _require(self.open or self._queries < _MAX_QUERIES, "no call waits for an event")
        return self.open


class Numbered(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of the checks' payloads."""

    index: int


@dataclass(frozen=True, slots=True)
class _Bench:
    connector: Connector
    device: Device
    stream: Stream

    def payload(self, index: int, rows: int = 6, width: int = 3) -> Payload:
        """A tensor `[rows, width]` and two page rows, with values unique to this `index`."""
        plain = self.device.empty((rows, width), torch.float32, self.stream)
        pages = self.device.empty((rows, 2, width), torch.float32, self.stream)
        self.device.launch(self.stream, _fill, plain, 1000.0 * index)
        self.device.launch(self.stream, _fill, pages, 1000.0 * index + 500.0)
        return Payload(Numbered(index=index), {"plain": plain, "pages": PageSlice(pages, np.array([5, 2]))})

    def send(self, index: int, ready: Event | None = None) -> tuple[Payload, Ref, Pending]:
        payload = self.payload(index)
        event = ready if ready is not None else self.device.record(self.stream)
        ref = self.connector.send(payload, event, self.stream)
        return payload, ref, self.connector.receive(ref, self.stream)

    def arrival(self, pending: Pending) -> Received:
        received = _until(pending.poll, "a payload that is ready arrives")
        assert received is not None
        _until(received.ready.done, "an arrived payload becomes ready")
        return received

    def host(self, tensor: Tensor | PageSlice) -> list[float]:
        shape = tensor.shape if isinstance(tensor, Tensor) else (len(tensor.slots), tensor.pages.shape[-1])
        copy = self.device.host_tensor(tuple(shape), torch.float32)
        self.device.launch(self.stream, _fetch, copy, tensor)
        self.device.synchronize()
        return [float(value) for value in copy.numpy().reshape(-1)]


def _payloads_arrive_whole(bench: _Bench) -> None:
    sent = [bench.send(index) for index in range(3)]
    host_only = bench.connector.send(Payload(Numbered(index=9)), COMPLETED, bench.stream)
    received = bench.arrival(bench.connector.receive(host_only, bench.stream))
    _require(received.payload.meta == Numbered(index=9), "a payload without tensors arrives")
    for payload, _, pending in sent:
        received = bench.arrival(pending)
        _require(received.payload.meta == payload.meta, "each reference brings its own payload, in the order asked for")
        _require(set(received.payload.tensors) == set(payload.tensors), "tensors keep their names")
        for name, tensor in payload.tensors.items():
            same = bench.host(received.payload.tensors[name]) == bench.host(tensor)
            _require(same, f"tensor {name!r} keeps its contents")
    for ref in (host_only, *(ref for _, ref, _ in sent)):
        bench.connector.release(ref, COMPLETED)
        _until(lambda ref=ref: ref.freed, "a released payload is freed")  # type: ignore[misc]


def _nothing_arrives_before_it_is_ready(bench: _Bench) -> None:
    gate = Gate()
    _, ref, pending = bench.send(1, gate)
    for _ in range(20):
        received = pending.poll()
        _require(received is None or not received.ready.done(), "a payload is not ready before its event")
    gate.open = True
    bench.arrival(pending)
    bench.connector.release(ref, COMPLETED)


def _raw_tensors_are_not_copied(bench: _Bench) -> None:
    if not bench.connector.raw_device_tensors or bench.connector.reach is not Reach.PROCESS:
        return
    payload, ref, pending = bench.send(1)
    arrived = bench.arrival(pending).payload.tensors
    for name, tensor in payload.tensors.items():
        other = arrived[name]
        _require(type(other) is type(tensor), f"tensor {name!r} travels as it is")
        _require(_address(other) == _address(tensor), f"tensor {name!r} travels without a copy")
    bench.connector.release(ref, COMPLETED)


def _release_frees_after_its_event(bench: _Bench) -> None:
    _, ref, pending = bench.send(1)
    bench.arrival(pending)
    _require(not ref.freed, "an unreleased payload is not free")
    _require(not ref.released, "an unreleased payload is not released")
    gate = Gate()
    bench.connector.release(ref, gate)
    _until(lambda: ref.released, "a released payload is released before the release event")
    _require(not ref.freed, "a released payload is not free before the release event")
    gate.open = True
    _until(lambda: ref.freed, "a released payload is free after the release event")


def _abort_frees(bench: _Bench) -> None:
    never = Gate()
    _, ref, pending = bench.send(1, never)
    bench.connector.abort(ref, "the check gives it up")
    bench.connector.abort(ref, "the check gives it up again")
    _until(lambda: ref.freed, "an aborted payload is free, also one that never became ready")
    _require(ref.released, "an aborted payload is released")
    try:
        lost = pending.poll() is None
    except OmniError:
        lost = True
    _require(lost, "an aborted payload does not arrive")


def _abort_after_release_changes_nothing(bench: _Bench) -> None:
    _, ref, pending = bench.send(1)
    bench.arrival(pending)
    gate = Gate()
    bench.connector.release(ref, gate)
    bench.connector.abort(ref, "too late")
    _require(not ref.freed, "an abort after the release does not free what is still being read")
    gate.open = True
    _until(lambda: ref.freed, "a payload released and then aborted is free after the release event")


def _fill(tensor: Tensor, start: float) -> None:
    tensor.view(-1).copy_(torch.arange(tensor.numel(), device=tensor.device, dtype=tensor.dtype) + start)


def _fetch(host: Tensor, tensor: Tensor | PageSlice) -> None:
    if isinstance(tensor, PageSlice):
        tensor = tensor.rows(torch.from_numpy(tensor.slots).to(tensor.pages.device))
    host.copy_(tensor)


def _address(tensor: Tensor | PageSlice) -> int:
    return (tensor.pages if isinstance(tensor, PageSlice) else tensor).data_ptr()


def _require(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(f"connector contract broken: {promise}")


def _until(ask: Callable[[], AnswerT], promise: str) -> AnswerT:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (answer := ask()):
        _require(time.monotonic() < deadline, promise)
        time.sleep(0.001)
    return answer
