"""Predicts the codes of a codec model's frames, after the token point of a step."""

from torch import Tensor

from omni.device import Event, Graph, Launch
from omni.device.graphs import CapturedGraphs
from omni_ar.kernels.sampling.state import EVERYTHING, SamplingFlags
from omni_ar.model import CodecModel
from omni_ar.run.late_phases import predict_codes
from omni_ar.run.source import graph_name
from omni_ar.run.state import Resources
from omni_ar.run.step import StepContext


class CodePrediction:
    """Launches the prediction of the frames that a step's tokens begin, and records when they are complete."""

    def __init__(self, stage: Resources, model: CodecModel) -> None:
        self._stage = stage
        self._model = model
        self._stream = stage.device.stream(f"{stage.name}-payload", priority=stage.priority)
        self._graphs = CapturedGraphs[None, Graph](stage.name)

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
        graph = stage.device.capture(stage.stream, graph_name(f"{stage.name}-codes", size, 0), launches)
        self._graphs.add(None, size, graph)

    def launch(self, context: StepContext, pages: Tensor) -> None:
        graph = self._graphs.find(None, context.padded)[1] if context.padded is not None else None
        if graph is not None:
            self._stage.device.replay(self._stage.stream, graph)
        else:
            launches = [self._codes(context.rows_R, context.flags, pages)]
            self._stage.device.enqueue(self._stage.stream, launches)

    def written(self, launched: Event) -> Event:
        """The event of frames that are complete after `launched`. Consumers wait for it on streams of their own."""
        self._stage.device.wait(self._stream, launched)
        return self._stage.device.record(self._stream)

    def _codes(self, rows_R: Tensor, flags: SamplingFlags, pages: Tensor) -> Launch:
        stage = self._stage
        hidden_RD, size = stage.buffers.hidden[: rows_R.shape[0]], stage.limits.block_size
        return Launch.of(predict_codes, self._model, stage.rows, hidden_RD, rows_R, flags, size, pages)
