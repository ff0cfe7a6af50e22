"""Drafts that are made at the end of a step, with several layer ranges (pipeline parallelism).

The rank with the last layer range makes the drafts of each sampled row's next step behind the token point, and sends them with the
tokens: ranks with earlier layers begin that step earlier, and have neither the hidden states nor the tokens for making drafts.
"""

from torch import Tensor

from omni.device import Graph
from omni.device.graphs import CapturedGraphs
from omni_ar.attention import KVCache
from omni_ar.run.captured_decodes import graph_name
from omni_ar.run.drafting import Drafting
from omni_ar.run.state import Resources
from omni_ar.run.step import StepContext


class LateDrafts:
    """Launches drafts at the end of a step."""

    def __init__(self, stage: Resources, drafting: Drafting) -> None:
        self._stage = stage
        self._drafting = drafting
        self._graphs = CapturedGraphs[None, Graph](stage.name)

    def clear(self) -> None:
        """Drops the captured graphs, before other pages are allocated."""
        self._graphs.clear()

    def capture(self, rows_B: Tensor, cache: KVCache | None) -> None:
        """Captures the drafts of B rows. cache: `Pages.drafts`."""
        stage, size = self._stage, rows_B.shape[0]
        launches = self._drafting.draft_launches(rows_B, stage.limits.max_blocks, cache)
        graph = stage.device.capture(stage.stream, graph_name(f"{stage.name}-propose", size, 0), launches)
        self._graphs.add(None, size, graph)

    def launch(self, context: StepContext, cache: KVCache | None) -> bool:
        """Drafts of a step's sampled rows, after their tokens. Returns whether any are made."""
        if not context.draft_blocks:
            return False
        graph = self._graphs.find(None, context.padded_rows)[1] if context.padded_rows is not None else None
        if graph is not None:
            self._stage.device.replay(self._stage.stream, graph)
        else:
            launches = self._drafting.draft_launches(context.rows_R, context.draft_blocks, cache)
            self._stage.device.enqueue(self._stage.stream, launches)
        return True
