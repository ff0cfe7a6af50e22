"""Transfer of samples from a stage's rows to the host.

| buffer | written by | read by | freed by |
|---|---|---|---|
| `wav[k]` | the stage's phase | `download_samples` of that batch, on the copy stream | the host's reading of the batch |
| download slot `k` | `download_samples` | host, once `SampleBatch.ready` | the host's reading of the batch |

Batches use the buffers in turn and are read in order. A batch whose launch or copy failed is not read: its buffer is
reused once the device has finished the work that it may have launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Downloader, HostSlot, PhaseCategory, Stream, declare_categories
from omni_frames.request import RequestT

MAX_IN_FLIGHT = 2
"""Maximum batches whose samples the host has not read: one runs, one is queued; the next takes all rows that are
ready."""

declare_categories({"download_samples": PhaseCategory.COPIES})


@dataclass(frozen=True, slots=True)
class SampleBatch(Generic[RequestT]):
    """A launched batch. samples: number of samples of each request."""

    requests: tuple[RequestT, ...]
    samples: int
    host: HostSlot

    @property
    def ready(self) -> bool:
        """Whether the samples are on the host."""
        return self.host.free

    def read(self, index: int) -> NDArray[np.float32]:
        """A copy of the samples of one of the requests. Valid once `ready`, and before `host` is released."""
        return self.host.read()[index * self.samples : (index + 1) * self.samples].astype(np.float32)


class SampleRing:
    """`MAX_IN_FLIGHT` float32 buffers of `most` samples on the device, and their copies on the host."""

    def __init__(self, device: Device, stream: Stream, copy_stream: Stream, most: int) -> None:
        self._wav = device.zeros((MAX_IN_FLIGHT, most), torch.float32)
        self._downloads = Downloader(device, stream, copy_stream, (most,), torch.float32, MAX_IN_FLIGHT)

    @property
    def ready(self) -> bool:
        """Whether a batch that writes the buffer of `turn` may be launched."""
        return self._downloads.ready

    @property
    def turn(self) -> int:
        """The buffer of the next batch."""
        return self._downloads.turn

    def buffer(self, turn: int, count: int, samples: int) -> Tensor:
        """The output `[count, samples]` of a phase that computes `samples` samples for each of `count` rows."""
        return self._wav[turn, : count * samples].view(count, samples)

    def send(self, requests: Sequence[RequestT], samples: int) -> SampleBatch[RequestT]:
        """Enqueues the copy of the buffer of `turn`, and advances `turn`."""
        self._downloads.begin()
        try:
            host, *_ = self._downloads.send(download_samples, self._wav[self.turn, : len(requests) * samples])
        except Exception:
            self._downloads.forget()
            raise
        return SampleBatch(tuple(requests), samples, host)


def download_samples(host: Tensor, wav_S: Tensor) -> None:
    host.copy_(wav_S, non_blocking=True)
