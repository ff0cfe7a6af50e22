"""Predicts the codes of a codec model's frames, after the token point of a step.

Kernels that overlap (`omni_ar.kernels.overlap`) hold multiprocessors while they wait for one another. Those of a frame follow each
other so closely that a prefill of another stage, whose stream has a lower priority, hardly gets any. So while a listener waits for
first sound, frames of many rows are predicted by kernels in turn: without overlap.
"""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from omni.device import Event, Graph, Launch
from omni.device.graphs import CapturedGraphs
from omni.device.kernel_choice import kernels_of
from omni.stage import Listeners
from omni_ar.kernels.overlap import kernels_in_turn, overlaps
from omni_ar.kernels.sampling.state import EVERYTHING, SamplingFlags
from omni_ar.model import CodecModel
from omni_ar.run.captured_decodes import graph_name
from omni_ar.run.late_phases import predict_codes
from omni_ar.run.state import Resources
from omni_ar.run.step import StepContext

_MANY_ROWS = 17
"""Minimum number of rows whose frames can leave multiprocessors to a prefill. Measured for 17 to 32 rows only."""


class CodePrediction:
    """Launches the prediction of the frames that begin with a step's tokens, and records their completion."""

    def __init__(self, stage: Resources, model: CodecModel, listeners: Listeners | None = None) -> None:
        """listeners: as in `StageContext`."""
        self._stage = stage
        self._model = model
        with kernels_of(stage.device.kernel_device):
            self._listeners = listeners if overlaps(stage.buffers.hidden) else None
        self._stream = stage.device.stream(f"{stage.name}-payload", priority=stage.priority)
        # The key is whether kernels run in turn.
        self._graphs = CapturedGraphs[bool, Graph](stage.name)

    @property
    def precedes_tokens(self) -> bool:
        """Whether a frame can end a request, so that the codes come before the token point."""
        return self._model.frame_end is not None

    def clear(self) -> None:
        """Drops the captured graphs, before other pages are allocated."""
        self._graphs.clear()

    def capture(self, rows_B: Tensor, pages: Tensor) -> None:
        """Captures the codes of B rows. pages: `Pages.codes`."""
        stage, size = self._stage, rows_B.shape[0]
        launches = [self._codes(rows_B, EVERYTHING, pages)]
        for in_turn in (False, True)[: 1 + self._may_run_in_turn(size)]:
            name = graph_name(f"{stage.name}-codes{'-in-turn' if in_turn else ''}", size, 0)
            with _kernels(in_turn):
                graph = stage.device.capture(stage.stream, name, launches)
            self._graphs.add(in_turn, size, graph)

    def launch(self, context: StepContext, pages: Tensor) -> None:
        step = context.launch
        size = step.padded_rows or step.count
        in_turn = self._may_run_in_turn(size) and self._listeners is not None and self._listeners.waiting
        graph = self._graphs.find(in_turn, size)[1] if step.padded_rows is not None else None
        if graph is not None:
            self._stage.device.replay(self._stage.stream, graph)
        else:
            launches = [self._codes(context.rows_R, step.flags, pages)]
            with _kernels(in_turn):
                self._stage.device.enqueue(self._stage.stream, launches)

    def written(self, launched: Event) -> Event:
        """The event of frames that are complete after `launched`. Consumers wait for it on streams of their own."""
        self._stage.device.wait(self._stream, launched)
        return self._stage.device.record(self._stream)

    def _may_run_in_turn(self, size: int) -> bool:
        return self._listeners is not None and size >= _MANY_ROWS

    def _codes(self, rows_R: Tensor, flags: SamplingFlags, pages: Tensor) -> Launch:
        stage = self._stage
        hidden_RD, size = stage.buffers.hidden[: rows_R.shape[0]], stage.limits.block_size
        return Launch.of(predict_codes, self._model, stage.rows, hidden_RD, rows_R, flags, size, pages)


def _kernels(in_turn: bool) -> AbstractContextManager[None]:
    return kernels_in_turn() if in_turn else nullcontext()
