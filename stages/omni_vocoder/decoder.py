"""Decodes one chunk of several rows and brings the samples to the host.

| buffer | written by | read by | freed by |
|---|---|---|---|
| `wav[k]` | `decode_frames` of a step | `download_samples` of it, on the copy stream | the host's reading of the step |
| download slot `k` | `download_samples` | host, once `ready` is done | the host's reading of the step |

Steps use the buffers in turn and are read in order: while fewer than `MAX_IN_FLIGHT` are unread, the next are read, and free once
the device is done with what a failed step may have launched.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Event, HostSlot, Stream, Uploader
from omni_vocoder.chunks import ChunkSizes
from omni_vocoder.frames import FrameStore
from omni_vocoder.model import StateT, VocoderModel
from omni_vocoder.request import VocoderRequest

MAX_IN_FLIGHT = 2
"""One step runs, one is queued behind it; rows that become ready meanwhile share the next."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A chunk of several rows whose inputs are on their way to the device. Nothing of their state is lost if it goes no further.

    rows_B, places_BN: int64, valid until the next preparation.
    """

    requests: tuple[VocoderRequest, ...]
    frames: int
    first: bool
    rows_B: Tensor
    places_BN: Tensor


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A launched step. frames, samples: of each of its requests. ready: the samples are on the host."""

    requests: tuple[VocoderRequest, ...]
    frames: int
    samples: int
    host: HostSlot
    ready: Event

    def read(self, index: int) -> NDArray[np.float32]:
        """The samples of one of the requests, memory of their own. Only once `ready` is done."""
        return self.host.read()[index * self.samples : (index + 1) * self.samples].astype(np.float32)


class Decoder:
    """Owns the model's state and the buffers of its output. Decides nothing."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        copy_stream: Stream,
        model: VocoderModel[StateT],
        store: FrameStore,
        rows: int,
        sizes: ChunkSizes,
    ) -> None:
        words = rows * (1 + sizes.largest)
        samples = rows * max(model.samples(sizes.first, True), model.samples(sizes.later, False))
        self._device = device
        self._stream = stream
        self._copy_stream = copy_stream
        self._model = model
        self._store = store
        self._state = model.new_state(rows)
        self._upload = Uploader(device, stream, words, 2 * MAX_IN_FLIGHT)
        self._wav = device.zeros((MAX_IN_FLIGHT, samples), torch.float32)
        self._slots = [HostSlot(device, (samples,), torch.float32) for _ in range(MAX_IN_FLIGHT)]
        self._steps = 0

    @property
    def ready(self) -> bool:
        """Whether `launch` may be called now, while fewer than `MAX_IN_FLIGHT` steps are unread."""
        # What a failed step launched may still be running on the slot of the next.
        return self._upload.ready and self._slots[self._steps % MAX_IN_FLIGHT].free

    def prepare(self, requests: Sequence[VocoderRequest], frames: int, first: bool) -> PreparedStep:
        """Enqueues the inputs of each request's next chunk: `frames` frames from its ring. May be tried again if it fails."""
        rows = np.array([request.row for request in requests], np.int64)
        places = np.stack([self._store.places(request, 0, frames) for request in requests])
        rows_B, places_BN = self._upload.send([rows, places])
        if first:
            self._device.launch(self._stream, reset_rows, self._model, self._state, rows_B)
        return PreparedStep(tuple(requests), frames, first, rows_B, places_BN)

    def launch(self, prepared: PreparedStep) -> DecodeStep:
        """Enqueues the decoding, which moves the rows' state on. Changes no request."""
        count, first = len(prepared.requests), prepared.first
        samples = self._model.samples(prepared.frames, first)
        turn = self._steps % MAX_IN_FLIGHT
        wav_BS = self._wav[turn, : count * samples].view(count, samples)
        ring_RCG, rows_B, places_BN = self._store.ring_RCG, prepared.rows_B, prepared.places_BN
        self._device.launch(
            self._stream, decode_frames, self._model, self._state, ring_RCG, places_BN, rows_B, first, wav_BS
        )
        decoded = self._device.record(self._stream)
        step = self._download(prepared.requests, prepared.frames, samples, wav_BS, decoded, turn)
        # A step that failed takes no turn: its buffers are the next one's.
        self._steps += 1
        return step

    def _download(
        self,
        requests: Sequence[VocoderRequest],
        frames: int,
        samples: int,
        wav_BS: Tensor,
        decoded: Event,
        turn: int,
    ) -> DecodeStep:
        self._device.wait(self._copy_stream, decoded)
        slot = self._slots[turn]
        slot.take()
        try:
            self._device.launch(self._copy_stream, download_samples, slot.tensor[: wav_BS.numel()], wav_BS)
        finally:
            ready = self._device.record(self._copy_stream)
            slot.guard(ready)
        return DecodeStep(tuple(requests), frames, samples, slot, ready)


def reset_rows(model: VocoderModel[StateT], state: StateT, rows_B: Tensor) -> None:
    model.reset(state, rows_B)


def decode_frames(
    model: VocoderModel[StateT],
    state: StateT,
    ring_RCG: Tensor,
    places_BN: Tensor,
    rows_B: Tensor,
    first: bool,
    wav_BS: Tensor,
) -> None:
    codes_BNG = ring_RCG.flatten(0, 1).index_select(0, places_BN.flatten()).unflatten(0, places_BN.shape)
    decoded_BS = model.decode(codes_BNG, state, rows_B, first)
    if decoded_BS.shape != wav_BS.shape:
        raise ValueError(f"the model gave samples {tuple(decoded_BS.shape)}, promised {tuple(wav_BS.shape)}")
    wav_BS.copy_(decoded_BS)


def download_samples(host: Tensor, wav_BS: Tensor) -> None:
    host.copy_(wav_BS.flatten(), non_blocking=True)
