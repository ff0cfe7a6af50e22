"""Receives the frames of each row, and transfers samples to the host.

| buffer | written by | read by | freed by |
|---|---|---|---|
| `wav_S` | the stage's phase | `keep_samples` of that batch | stream order |
| `kept[k]` | `keep_samples` | `download_samples` of that batch, on the copy stream | the host's reading |
| download slot `k` | `download_samples` | host, once `SampleBatch.ready` | the host's reading of the batch |

Batches use the slots in turn and are read in order. A batch whose launch or copy failed is not read: its slot is
reused once the device has finished the work that it may have launched.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Downloader, HostSlot, PhaseCategory, Stream, declare_categories
from omni.stage import PayloadCopier, Transfer
from omni_frames.request import ArrivedFrames, FrameRequest, RequestT


class FrameStore:
    """A ring of `capacity` frames for each row, which the stage's phases read on the same stream. The host removes frames."""

    def __init__(self, device: Device, stream: Stream, *, rows: int, capacity: int, groups: int) -> None:
        self.ring_RCG = device.zeros((rows, capacity, groups), torch.int64)
        self._frames = self.ring_RCG.view(rows * capacity, groups)
        self._capacity = capacity
        self._copier = PayloadCopier(device, stream, (1 + groups) * rows * capacity)

    def indices(self, request: FrameRequest, start: int, count: int) -> NDArray[np.int64]:
        """Indices in the flattened ring of the row's frames `start` to `start + count`, counted from its oldest."""
        assert request.row is not None
        offsets = request.start + np.arange(start, start + count, dtype=np.int64)
        return request.row * self._capacity + offsets % self._capacity

    def take(self, requests: Iterable[RequestT]) -> tuple[bool, dict[RequestT, Exception]]:
        """Enqueues the copy of all frames of `requests` that are ready and fit, and releases completely copied inputs. Returns
        whether there were any, and the requests whose copy could not be launched."""
        if not self._copier.ready:
            return False, {}
        planned = [(request, *part) for request in requests for part in self._plan(request)]
        result = self._copier.copy([transfer for _, _, transfer in planned])
        for request, arrival, _ in planned:
            arrival.after = result.end
            if arrival.taken == arrival.count:
                request.arrivals.remove(arrival)
                arrival.release()
        failed = {r: result.failed[transfer] for r, _, transfer in planned if transfer in result.failed}
        return bool(planned), failed

    def _plan(self, request: RequestT) -> list[tuple[ArrivedFrames, Transfer]]:
        """Inputs that fit into the ring; the last one possibly in part."""
        planned: list[tuple[ArrivedFrames, Transfer]] = []
        for arrival in request.arrivals:
            free = self._capacity - request.buffered
            if not free or not arrival.message.arrived:
                break
            first, count = arrival.taken, min(free, arrival.count - arrival.taken)
            indices = self.indices(request, request.buffered, count)
            planned.append((arrival, Transfer(arrival.codes, self._frames, indices, slice(first, first + count))))
            arrival.taken += count
            request.buffered += count
        return planned


MAX_IN_FLIGHT = 2
"""Maximum batches whose samples the host has not read: one runs, one is queued; the next takes all rows that are
ready."""

declare_categories({"keep_samples": PhaseCategory.COPIES, "download_samples": PhaseCategory.COPIES})


@dataclass(frozen=True, slots=True)
class SampleBatch(Generic[RequestT]):
    """A launched batch. samples: number of samples of each request, of the `width` that the batch has for each."""

    requests: tuple[RequestT, ...]
    samples: tuple[int, ...]
    width: int
    host: HostSlot

    @property
    def ready(self) -> bool:
        return self.host.free

    def read(self, index: int) -> NDArray[np.float32]:
        """A copy of the samples of one of the requests. Valid once `ready`, and before `host` is released."""
        start = index * self.width
        return self.host.read()[start : start + self.samples[index]].astype(np.float32)


class SampleRing(Downloader):
    """The samples of `MAX_IN_FLIGHT` batches, float32, at most `most` each: on the device, and copies on the host. Every batch is
    computed in one buffer, so that a captured batch has a single graph."""

    def __init__(self, device: Device, stream: Stream, copy_stream: Stream, most: int) -> None:
        super().__init__(device, stream, copy_stream, shape=(most,), dtype=torch.float32, slots=MAX_IN_FLIGHT)
        self._wav_S = device.zeros((most,), torch.float32)
        self._kept = device.zeros((MAX_IN_FLIGHT, most), torch.float32)

    def buffer(self, count: int, samples: int) -> Tensor:
        """The output `[count, samples]` of a phase that computes `samples` samples for each of `count` rows."""
        return self._wav_S[: count * samples].view(count, samples)

    def download(
        self, requests: Sequence[RequestT], width: int, samples: Sequence[int] | None = None
    ) -> SampleBatch[RequestT]:
        """Enqueues the copy of the buffer, `[requests, width]`. samples: of each request; None for `width`."""
        self.begin()
        try:
            kept_S = self._kept[self.next_slot, : len(requests) * width]
            self._device.launch(self._after, keep_samples, kept_S, self._wav_S[: kept_S.shape[0]])
            host, *_ = self.send(download_samples, kept_S)
        except Exception:
            self.forget()
            raise
        counts = tuple(samples) if samples is not None else (width,) * len(requests)
        return SampleBatch(tuple(requests), counts, width, host)


def keep_samples(kept_S: Tensor, wav_S: Tensor) -> None:
    kept_S.copy_(wav_S)


def download_samples(host: Tensor, wav_S: Tensor) -> None:
    host.copy_(wav_S, non_blocking=True)
