"""Begins windows and denoises rows' latents, step by step.

| buffer | written by | read by | freed by |
|---|---|---|---|
| state and `latents_RTM` of a row | `begin_windows`, `denoise_rows` | the same, and `render_part` | stream order |
| upload of a step | the copy, after the step before | `denoise_rows` | stream order |

The upload slot of a step is free after its copy, that is, after the last step but one. So at most two steps are in flight: one runs
and one is queued. A new row joins the step after these.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Graph, Launch, PackedSpan, Stream, Uploader
from omni.device.graphs import CapturedGraphs
from omni.errors import ReturnedError
from omni_diffusion.model import DiffusionModel, StateT, Windows
from omni_diffusion.precision import products
from omni_diffusion.request import DiffusionRequest
from omni_diffusion.windows import DenoisingWindow, WindowSizes
from omni_frames.store import FrameStore

T = TypeVar("T")

MOST_BEGUN = 2
"""Maximum windows of one launch: other stages wait while the host draws their noise, 0.2 ms for each."""


class WindowHead(NamedTuple, Generic[T]):
    """The numbers in front of a window's indices and noise in an upload, in this order. Meanings as in `Windows`."""

    row: T
    first: T
    context: T
    fresh: T
    frames: T
    voice: T


_HEAD = len(WindowHead._fields)
_COLUMNS = WindowHead(*range(_HEAD))


class Denoiser:
    """Owns the model's state and the latents of windows. It does no scheduling."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: DiffusionModel[StateT],
        *,
        store: FrameStore,
        rows: int,
        sizes: WindowSizes,
        tf32: bool,
    ) -> None:
        self._null_row = rows
        self._device = device
        self._stream = stream
        self._model = model
        self._store = store
        self._sizes = sizes
        self._tf32 = tf32
        self._state = model.new_state(rows + 1, sizes.frames)
        self.latents_RTM = device.zeros((rows + 1, sizes.frames * model.repeats, model.latent_width), torch.float32)
        # Two float32 values share one int64.
        self._columns = _HEAD + sizes.frames + -(-sizes.frames * model.repeats * model.latent_width // 2)
        # All rows may begin windows while a step runs that their uploads wait for.
        self.window_uploads = Uploader(
            device, stream, min(MOST_BEGUN, rows) * self._columns, 1 + -(-rows // MOST_BEGUN)
        )
        self.step_uploads = Uploader(device, stream, 2 * rows, 1)
        self._begin_graphs = CapturedGraphs[None, Graph](stream.name)
        self._captured_begins: set[int] = set()
        self._step_graphs = CapturedGraphs[int, Graph](stream.name, others="windows of other sizes")

    def capture(self, size: int) -> None:
        """Captures a step of `size` rows for each width, and the beginning of that many windows, at most `MOST_BEGUN`. Called at
        start."""
        if (windows := min(size, MOST_BEGUN)) not in self._captured_begins:
            graph = self._device.capture(self._stream, f"{self._stream.name}-begin-{windows}", self.null_begin(windows))
            self._begin_graphs.add(None, windows, graph)
            self._captured_begins.add(windows)
        for width in self._sizes.widths:
            name = f"{self._stream.name}-{width}-frames-{size}"
            self._step_graphs.add(width, size, self._device.capture(self._stream, name, self.null_step(size, width)))

    def null_begin(self, count: int) -> list[Launch]:
        packed_BX = self.window_uploads.view(PackedSpan(0, (count, self._columns)))
        null = Launch.of(set_null_windows, packed_BX, self._null_row, self._sizes.block)
        self._device.enqueue(self._stream, [null])
        return [self._begin(packed_BX)]

    def null_step(self, count: int, width: int) -> list[Launch]:
        packed_2B = self.step_uploads.view(PackedSpan(0, (2, count)))
        self._device.enqueue(self._stream, [Launch.of(set_null_steps, packed_2B, self._null_row)])
        return [self._step(packed_2B, width)]

    def prepare_begin(
        self, requests: Sequence[DiffusionRequest], windows: Sequence[DenoisingWindow]
    ) -> Callable[[], None]:
        """Enqueues the inputs of a window of each request, at most `MOST_BEGUN`. Returns a function that enqueues their beginning.
        The call and the function can be retried after a failure."""
        size, graph = self._begin_graphs.find(None, len(requests))
        packed = np.zeros((size, self._columns), np.int64)
        packed[:, _COLUMNS.row], packed[:, _COLUMNS.frames] = self._null_row, self._sizes.block
        for line, request, window in zip(packed, requests, windows, strict=False):
            self._fill(line, request, window)
        (packed_BX,) = self.window_uploads.send([packed])
        return partial(self._device.replay_or_enqueue, self._stream, graph, [self._begin(packed_BX)])

    def prepare_step(self, requests: Sequence[DiffusionRequest]) -> Callable[[], None]:
        """Enqueues the inputs of each request's next step. Returns a function that enqueues the step. Both can be retried."""
        count = len(requests)
        width = self._sizes.width(max(request.window.frames for request in requests if request.window is not None))
        size, graph = self._step_graphs.find(width, count)
        packed = np.zeros((2, size), np.int64)
        packed[0] = self._null_row
        packed[:, :count] = np.array([(request.row, request.step) for request in requests]).T
        (packed_2B,) = self.step_uploads.send([packed])
        return partial(self._device.replay_or_enqueue, self._stream, graph, [self._step(packed_2B, width)])

    def _fill(self, line: NDArray[np.int64], request: DiffusionRequest, window: DenoisingWindow) -> None:
        assert request.row is not None
        assert request.voice is not None
        assert request.noise is not None
        line[:_HEAD] = WindowHead(
            row=request.row,
            first=window.first,
            context=window.context,
            fresh=window.fresh,
            frames=window.frames,
            voice=request.voice,
        )
        line[_HEAD : _HEAD + window.frames] = self._store.indices(request, window.first - request.passed, window.frames)
        noise = request.noise.of(window)
        line[_HEAD + self._sizes.frames :].view(np.float32)[: noise.size] = noise.reshape(-1)

    def _begin(self, packed_BX: Tensor) -> Launch:
        model, state, ring_RCG, frames = self._model, self._state, self._store.ring_RCG, self._sizes.frames
        return Launch.of(begin_windows, model, state, ring_RCG, packed_BX, frames, self.latents_RTM, self._tf32)

    def _step(self, packed_2B: Tensor, width: int) -> Launch:
        held_RTM = self.latents_RTM[:, : width * self._sizes.repeats]
        return Launch.of(denoise_rows, self._model, self._state, held_RTM, packed_2B, self._tf32)


def set_null_windows(packed_BX: Tensor, null_row: int, frames: int) -> None:
    """Writes the inputs of null windows: one block each, since a window has at least one frame."""
    packed_BX.zero_()
    packed_BX[:, _COLUMNS.row] = null_row
    packed_BX[:, _COLUMNS.frames] = frames


def set_null_steps(packed_2B: Tensor, null_row: int) -> None:
    packed_2B.zero_()
    packed_2B[0] = null_row


def begin_windows(
    model: DiffusionModel[StateT],
    state: StateT,
    ring_RCG: Tensor,
    packed_BX: Tensor,
    frames: int,
    latents_RTM: Tensor,
    tf32: bool,
) -> None:
    """Writes the noise of windows over their rows' latents, and begins the windows in the model.

    ring_RCG: int64, waiting frames, `C` per row. packed_BX: int64, for each window its `WindowHead`, the indices of
    its `frames` code frames in the ring viewed as `[R * C, G]`, and its noise, two float32 per int64.
    """
    head_BH, indices_BN, noise_BX = packed_BX.split((_HEAD, frames, packed_BX.shape[1] - _HEAD - frames), 1)
    head: WindowHead[Tensor] = WindowHead(*head_BH.T.contiguous().unbind())
    shape = latents_RTM.shape[1:]
    noise_BTM = noise_BX.view(torch.float32)[:, : shape.numel()].unflatten(1, shape)
    latents_RTM.index_copy_(0, head.row, noise_BTM)
    codes_BNG = ring_RCG.flatten(0, 1).index_select(0, indices_BN.flatten()).unflatten(0, indices_BN.shape)
    with products(tf32):
        model.begin(
            state,
            Windows(
                rows_B=head.row,
                first_B=head.first,
                context_B=head.context,
                fresh_B=head.fresh,
                frames_B=head.frames,
                voices_B=head.voice,
                codes_BNG=codes_BNG,
            ),
        )


def denoise_rows(
    model: DiffusionModel[StateT], state: StateT, latents_RTM: Tensor, packed_2B: Tensor, tf32: bool
) -> None:
    """Advances the latents of some rows by one step. packed_2B: int64, rows and their steps. Raises ReturnedError if misshapen."""
    rows_B, steps_B = packed_2B.unbind()
    noisy_BTM = latents_RTM.index_select(0, rows_B)
    with products(tf32):
        cleaner_BTM = model.denoise(state, noisy_BTM, rows_B, steps_B)
    if cleaner_BTM.shape != noisy_BTM.shape:
        problem = f"{type(model).__name__} gave latents {tuple(cleaner_BTM.shape)} for {tuple(noisy_BTM.shape)}"
        raise ReturnedError(problem, model.denoise)
    latents_RTM.index_copy_(0, rows_B, cleaner_BTM.to(torch.float32))
    # The null row takes part in many steps of a single window, so its values would grow without bound.
    latents_RTM[-1].zero_()
