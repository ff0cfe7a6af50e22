"""Keeps denoised latents, and renders those whose neighbours are available.

| buffer | written by | read by | freed by |
|---|---|---|---|
| `kept_RCM` of a row | `render_part` | `render_part`, same stream | the host's count: indices are reused in order |
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device import Device, Graph, Launch, PackedSpan, Stream, Uploader
from omni.device.graphs import CapturedGraphs
from omni.errors import ReturnedError
from omni_diffusion.model import DiffusionModel, StateT
from omni_diffusion.precision import products
from omni_diffusion.request import DiffusionRequest
from omni_diffusion.windows import RenderPart, WindowSizes
from omni_frames.store import SampleBatch, SampleRing

_UPLOADS = 4


class Renderer:
    """Owns the denoised latents. It does no scheduling. latents_RTM: latents of the rows' windows."""

    def __init__(
        self,
        device: Device,
        stream: Stream,
        model: DiffusionModel[StateT],
        *,
        latents_RTM: Tensor,
        samples: SampleRing,
        sizes: WindowSizes,
        tf32: bool,
    ) -> None:
        num_rows, self._window_latents, width = latents_RTM.shape
        rows = self._null_row = num_rows - 1
        self._device = device
        self._stream = stream
        self._model = model
        self._sizes = sizes
        self._tf32 = tf32
        self._latents_RTM = latents_RTM
        self._samples = samples
        self._kept_RCM = device.zeros((num_rows, sizes.kept, width), torch.float32)
        self._upload = Uploader(device, stream, rows * (1 + 2 * sizes.most_fresh + sizes.kept), _UPLOADS)
        others = "parts of other sizes, at the end of short requests,"
        self._graphs = CapturedGraphs[RenderPart, Graph](stream.name, others=others)

    def capture(self, size: int) -> None:
        """Captures the parts of long streams for `size` rows. At start, before there are requests."""
        for part in (*self._sizes.usual_parts(), self._sizes.end):
            name = f"{self._stream.name}-{part.fresh}-{part.count}-latents-{size}"
            graph = self._device.capture(self._stream, name, self.null_parts(size, part))
            self._graphs.add(part, size, graph)

    def null_parts(self, count: int, part: RenderPart) -> list[Launch]:
        packed_BX = self._upload.view(PackedSpan(0, (count, 1 + 2 * part.fresh + part.seen)))
        self._device.enqueue(self._stream, [Launch.of(set_null_part, packed_BX)])
        return [self._render(part, packed_BX)]

    @property
    def ready(self) -> bool:
        return self._upload.ready and self._samples.ready

    def prepare(
        self, parts: Mapping[DiffusionRequest, RenderPart], batch_part: RenderPart
    ) -> Callable[[], SampleBatch[DiffusionRequest] | None]:
        """Enqueues the indices of each request's latents. Returns a function that enqueues keeping, rendering and the
        copy to the host, and returns None if nothing is rendered. Both can be retried. parts: all have this `batch_part`."""
        size, graph = self._graphs.find(batch_part, len(parts))
        packed = np.empty((size, 1 + 2 * batch_part.fresh + batch_part.seen), np.int64)
        packed[:, 0] = 0
        packed[:, 1 : 1 + batch_part.fresh] = self._null_row * self._window_latents
        packed[:, 1 + batch_part.fresh :] = self._null_row * self._sizes.kept
        for line, (request, part) in zip(packed, parts.items(), strict=False):
            self._fill(line, request, part, batch_part)
        (packed_BX,) = self._upload.send([packed])

        def launch() -> SampleBatch[DiffusionRequest] | None:
            self._device.replay_or_enqueue(self._stream, graph, [self._render(batch_part, packed_BX)])
            rate = self._model.samples_per_latent
            if not batch_part.count:
                return None
            samples = [part.count * rate for part in parts.values()]
            return self._samples.download(list(parts), batch_part.count * rate, samples)

        return launch

    def _fill(
        self, line: NDArray[np.int64], request: DiffusionRequest, part: RenderPart, batch_part: RenderPart
    ) -> None:
        """Writes the row's first rendered latent among those that the model sees, and the indices of its latents."""
        assert request.row is not None
        done, kept = request.done * self._sizes.repeats, self._sizes.kept
        _, sources, targets, seen = np.split(line, (1, 1 + batch_part.fresh, 1 + 2 * batch_part.fresh))
        if request.window is not None:
            start = request.row * self._window_latents + request.window.context * self._sizes.repeats
            sources[: part.fresh] = np.arange(start, start + part.fresh)
            targets[: part.fresh] = request.row * kept + np.arange(done, done + part.fresh) % kept
        end = request.rendered + part.count + part.right
        line[0] = request.rendered - (end - batch_part.seen)
        seen[:] = request.row * kept + np.arange(end - batch_part.seen, end) % kept

    def _render(self, part: RenderPart, packed_BX: Tensor) -> Launch:
        wav_BS = self._samples.buffer(packed_BX.shape[0], part.count * self._model.samples_per_latent)
        latents_RTM, kept_RCM = self._latents_RTM, self._kept_RCM
        return Launch.of(render_part, self._model, latents_RTM, kept_RCM, packed_BX, part, wav_BS, self._tf32)


def set_null_part(packed_BX: Tensor) -> None:
    """Writes the inputs of null parts. Before there are requests, any row is a null row."""
    packed_BX.zero_()


def render_part(
    model: DiffusionModel[StateT],
    latents_RTM: Tensor,
    kept_RCM: Tensor,
    packed_BX: Tensor,
    part: RenderPart,
    wav_BS: Tensor,
    tf32: bool,
) -> None:
    """Keeps windows' fresh latents, and writes the samples of the part, if any.

    latents_RTM: of windows, `T` per row. kept_RCM: kept ones, `C` per row. packed_BX: int64, for each row the first latent of the
    model's input whose samples are wanted, the indices of its fresh latents in `[R * T, M]`, their destinations in `[R * C, M]`,
    and the indices there of the model's input. wav_BS: fp32. Raises ReturnedError for another shape.
    """
    start_B1, sources_Bn, targets_Bn, seen_BT = packed_BX.split((1, part.fresh, part.fresh, part.seen), 1)
    if part.fresh:
        fresh_nM = latents_RTM.flatten(0, 1).index_select(0, sources_Bn.flatten())
        kept_RCM.flatten(0, 1).index_copy_(0, targets_Bn.flatten(), fresh_nM)
    if not part.count:
        return
    seen_BTM = kept_RCM.flatten(0, 1).index_select(0, seen_BT.flatten()).unflatten(0, seen_BT.shape)
    with products(tf32):
        rendered_BS = model.render(seen_BTM)
    rate = model.samples_per_latent
    if rendered_BS.shape != (wav_BS.shape[0], part.seen * rate):
        problem = (
            f"{type(model).__name__} gave samples {tuple(rendered_BS.shape)} for {tuple(seen_BT.shape)} latent frames"
        )
        raise ReturnedError(problem, model.render)
    # Frames after the input's end are not read.
    sample_BS = start_B1 * rate + torch.arange(wav_BS.shape[1], device=wav_BS.device)
    wav_BS.copy_(rendered_BS.gather(1, sample_BS.clamp(max=rendered_BS.shape[1] - 1)))
