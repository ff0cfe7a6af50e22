"""Captured decode steps: inputs and forward of a batch without chunks."""

from torch import Tensor

from omni.device import Graph
from omni.device.graphs import CapturedGraphs
from omni_ar.run.forward import Forward
from omni_ar.run.launch import StepLaunch
from omni_ar.run.pack import LeadingInputs
from omni_ar.run.state import Pages, Resources


class CapturedDecodes:
    """Captures decode steps, and finds the graph of the batch that a step is padded to."""

    def __init__(self, stage: Resources, forward: Forward) -> None:
        self._stage = stage
        self._forward = forward
        # The key is the number of drafts per row.
        self._graphs = CapturedGraphs[int, Graph](stage.name)

    def clear(self) -> None:
        self._graphs.clear()

    def capture(self, inputs: LeadingInputs[Tensor], drafts: int, pages: Pages) -> None:
        """inputs: their views on the device, where a step of as many rows has them. drafts: per row."""
        stage, size = self._stage, inputs.rows.shape[0]
        decode = self._forward.decodes(inputs.rows, inputs.steps, stage.limits.max_blocks, pages, drafts)
        name = graph_name(f"{stage.stream.name}-decode", size, drafts)
        graph = stage.device.capture(stage.stream, name, [*decode.inputs, *decode.forward])
        self._graphs.add(drafts, size, graph)

    def padded_rows(self, drafts: int, rows: int) -> int | None:
        """Number of rows that a batch is padded to; None if it runs uncaptured."""
        size, graph = self._graphs.find(drafts, rows)
        return size if graph is not None else None

    def find(self, step: StepLaunch) -> Graph | None:
        """The graph of a step that `padded_rows` has padded; None if it runs uncaptured."""
        return self._graphs.find(step.drafts, step.padded_rows)[1] if step.padded_rows is not None else None


def graph_name(phases: str, size: int, drafts: int) -> str:
    """The name of a captured graph of `size` rows."""
    return f"{phases}-{size}" + (f"-drafts-{drafts}" if drafts else "")
