"""The inputs of unchanged micro-batches, which take turns in the upload's buffer."""

import torch
from torch import Tensor

from omni.device import Device, PackedSpan, Stream, Upload, Uploader
from omni_ar.run.launch import StepLaunch
from omni_ar.run.limits import Limits


def copy_inputs(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


class MicroBatchInputs:
    """A copy of the leading inputs of each micro-batch. Graphs and other phases read the upload's buffer, at fixed addresses.

    | buffer | written by | read by | free again |
    |---|---|---|---|
    | an area | `copy_inputs`, in the step that uploads its batch | `copy_inputs`, in later steps of the batch | stream order |
    """

    def __init__(self, device: Device, stream: Stream, uploader: Uploader, limits: Limits) -> None:
        self._device, self._stream, self._uploader = device, stream, uploader
        areas = limits.micro_batches if limits.micro_batches > 1 else 0
        # A row's index and its advance: steps of conditioned models are never unchanged.
        self._areas_AX = device.zeros((areas, 2 * limits.rows), torch.int64)

    def launch(self, upload: Upload | None, step: StepLaunch) -> None:
        """Launches the copy of the step's inputs into the upload's buffer. upload: None if they are on the device already."""
        if upload is not None:
            self._uploader.launch(upload)
        if step.area is None:
            return
        steps = step.packed.steps
        size = steps.start + steps.size
        kept_X, inputs_X = self._areas_AX[step.area, :size], self._uploader.view(PackedSpan(0, (size,)))
        source, target = (kept_X, inputs_X) if upload is None else (inputs_X, kept_X)
        self._device.launch(self._stream, copy_inputs, source, target)
