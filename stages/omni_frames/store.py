"""Receives the frames of each row."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from omni.device import Device, Stream
from omni.stage import PayloadReceiver, Transfer
from omni_frames.inputs import Arrival
from omni_frames.request import FrameRequest, RequestT


class FrameStore:
    """A ring of `capacity` frames for each row, which the stage's phases read on the same stream. The host drops
    frames."""

    def __init__(self, device: Device, stream: Stream, rows: int, capacity: int, groups: int) -> None:
        self.ring_RCG = device.zeros((rows, capacity, groups), torch.int64)
        self._frames = self.ring_RCG.view(rows * capacity, groups)
        self._capacity = capacity
        self._receiver = PayloadReceiver(device, stream, (1 + groups) * rows * capacity)

    def places(self, request: FrameRequest, start: int, count: int) -> NDArray[np.int64]:
        """Places in the flattened ring of the row's frames `start` to `start + count`, counted from its oldest."""
        assert request.row is not None
        offsets = request.start + np.arange(start, start + count, dtype=np.int64)
        return request.row * self._capacity + offsets % self._capacity

    def take(self, requests: Iterable[RequestT]) -> tuple[bool, dict[RequestT, Exception]]:
        """Enqueues the copy of all frames of `requests` that are ready and fit, and releases completely copied inputs.

        Returns whether there were any, and the requests whose copy could not be launched.
        """
        if not self._receiver.ready:
            return False, {}
        planned = [(request, *part) for request in requests for part in self._plan(request)]
        receipt = self._receiver.receive([transfer for _, _, transfer in planned])
        for request, arrival, _ in planned:
            arrival.after = receipt.end
            if arrival.taken == arrival.count:
                request.arrivals.remove(arrival)
                arrival.release()
        failed = {r: receipt.failed[transfer] for r, _, transfer in planned if transfer in receipt.failed}
        return bool(planned), failed

    def _plan(self, request: RequestT) -> list[tuple[Arrival, Transfer]]:
        """Inputs that fit into the ring; the last one possibly in part."""
        planned: list[tuple[Arrival, Transfer]] = []
        for arrival in request.arrivals:
            room = self._capacity - request.buffered
            if not room or not arrival.message.arrived:
                break
            first, count = arrival.taken, min(room, arrival.count - arrival.taken)
            places = self.places(request, request.buffered, count)
            planned.append((arrival, Transfer(arrival.codes, self._frames, places, slice(first, first + count))))
            arrival.taken += count
            request.buffered += count
        return planned
