"""Packaging and payload copies as in engines that release a step's tokens and payload together.

Shape legend: R rows, N rows at most, W width of hidden states, G codes of a frame, m positions of prompts.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import torch
from torch import Tensor

from bench.device import TimedDevice
from bench.steps import StepRecorder
from omni.device import Launch, PackedSpan, PhaseCategory, Uploader, declare_categories
from omni_ar.kernels.step.state import RowState
from omni_ar.run.runner import Runner
from omni_ar.run.step import SampledStep, StepContext

_PROMPT_ROWS = 2048
"""Hidden states of prompts that one step packages at most."""


class PackedRow(msgspec.Struct, frozen=True):
    """A message to a request's consumer: tensors in host memory of their own."""

    request_id: str
    tensors: dict[str, Tensor]


class InlinePackaging:
    """Before a runner's `sample_tokens` returns, brings the step's payload to the host and makes one object per request of it.

    It does what must be done, once, and well: everything is gathered on the main stream behind the step's own work (frames in a
    captured graph, where graphs are on), copied to pinned memory without blocking in one copy per kind, waited for by one event,
    and cloned in one piece, of which each request gets its rows. The tokens are in the host's memory at the token point, as they
    are otherwise; but they are read, and the next step is planned and launched, only when the call has returned. Left out, in its
    favour, is the way to the next stage: what consumers then gather, they gather from the device's pages, as they do without it.

    sent: the newest object of each request. rows: how many were made.
    """

    def __init__(self, device: TimedDevice, recorder: StepRecorder, runner: Runner, rows: int, graphs: bool) -> None:
        self.sent: dict[str, PackedRow] = {}
        self.rows = 0
        self._device, self._recorder, self._runner, self._size = device, recorder, runner, rows
        self._stream, pages, shape = runner.stream, runner.pages, runner._model.shape
        self._hosts: dict[str, Tensor] = {}
        if shape.emits_tokens:
            self._hosts["hidden"] = device.host_tensor((rows, shape.payload_width), runner.dtype)
        if pages.hidden is not None:
            self._slots = Uploader(device, self._stream, _PROMPT_ROWS, 4)
            self._prompt_mW = device.zeros((_PROMPT_ROWS, shape.payload_width), runner.dtype)
            self._prompt_host = device.host_tensor((_PROMPT_ROWS, shape.payload_width), runner.dtype)
        if pages.codes is not None:
            self._frames_NG = device.zeros((rows, pages.codes.shape[-1]), torch.int64)
            self._hosts["codes"] = device.host_tensor((rows, pages.codes.shape[-1]), torch.int64)
            self._graph = None
            if graphs:
                rows_B = runner._uploader.view(PackedSpan(0, (rows,)))
                self._graph = device.capture(self._stream, "read-frames", [self._read_frames(rows_B)])
        recorder.around_sampling(self.sample)

    def sample(self, sample: Callable[[StepContext], SampledStep], context: StepContext) -> SampledStep:
        step = sample(context)
        count = len(context.requests.rows)
        if not count:
            return step
        with self._device.host_span(self._stream, "package_payload"):
            prompt = self._copy_prompts(context)
            if "hidden" in self._hosts:
                self._copy("hidden", context.hidden_RD, count)
            if "codes" in self._hosts:
                self._read(context, count)
                self._copy("codes", self._frames_NG, count)
            self._recorder.launched()
            self._wait()
            self._package(context, prompt)
        return step

    def _copy(self, name: str, source: Tensor, count: int) -> None:
        self._device.launch(self._stream, copy_payload, self._hosts[name][:count], source[:count])

    def _read(self, context: StepContext, count: int) -> None:
        if self._graph is not None and context.launch.padded_rows == self._size:
            self._device.replay(self._stream, self._graph)
        else:
            launch = self._read_frames(context.rows_R[:count])
            self._device.launch(self._stream, launch.phase, *launch.buffers)

    def _read_frames(self, rows_R: Tensor) -> Launch:
        runner = self._runner
        out_RG = self._frames_NG[: rows_R.shape[0]]
        pages = runner.pages.codes
        assert pages is not None
        return Launch.of(read_frames, runner._state, rows_R, runner._limits.block_size, pages, out_RG)

    def _copy_prompts(self, context: StepContext) -> dict[str, slice]:
        """Rows of the copy by request, for prompts that this step completes."""
        places, slots, start = {}, [], 0
        for scheduled in context.requests.rows:
            prompt = scheduled.request.prompt
            if scheduled.emits_hidden and prompt is not None:
                slots.append(scheduled.table.slots(prompt.payload_positions, self._runner._limits.block_size))
                places[scheduled.request.id] = slice(start, start + slots[-1].size)
                start += slots[-1].size
        if places:
            (slots_m,) = self._slots.send([np.concatenate(slots)])
            self._device.launch(
                self._stream, gather_prompts, self._runner.pages.hidden, slots_m, self._prompt_mW[:start]
            )
            self._device.launch(self._stream, copy_payload, self._prompt_host[:start], self._prompt_mW[:start])
        return places

    def _wait(self) -> None:
        event = self._device.record(self._stream)
        while not event.done():
            pass

    def _package(self, context: StepContext, prompt: dict[str, slice]) -> None:
        count = len(context.requests.rows)
        copies = {name: host[:count].clone() for name, host in self._hosts.items()}
        for place, scheduled in enumerate(context.requests.rows):
            name = scheduled.request.id
            tensors = {kind: rows[place] for kind, rows in copies.items()}
            if name in prompt:
                tensors["prompt"] = self._prompt_host[prompt[name]].clone()
            self.sent[name] = PackedRow(name, tensors)
            self.rows += 1


def copy_payload(host: Tensor, source: Tensor) -> None:
    host.copy_(source, non_blocking=True)


def gather_prompts(pages: Tensor, slots_m: Tensor, out_mW: Tensor) -> None:
    torch.index_select(pages.flatten(0, 1), 0, slots_m, out=out_mW)


def read_frames(state: RowState, rows_R: Tensor, block_size: int, pages: Tensor, out_RG: Tensor) -> None:
    """The frames that the step has just predicted, from the slots that they are in."""
    at_R = state.columns.length.index_select(0, rows_R)
    block_R = state.block_table.index_select(0, rows_R).gather(1, (at_R // block_size)[:, None]).squeeze(1)
    torch.index_select(pages.flatten(0, 1), 0, block_R * block_size + at_R % block_size, out=out_RG)


declare_categories(
    {
        "copy_payload": PhaseCategory.COPIES,
        "gather_prompts": PhaseCategory.PAYLOAD,
        "read_frames": PhaseCategory.PAYLOAD,
    },
)
