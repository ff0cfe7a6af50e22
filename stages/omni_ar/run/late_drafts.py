"""Drafts that are made at the end of a step, with several layer ranges (pipeline parallelism).

The rank with the last layer range makes the drafts of each sampled row's next step after the token point, and sends them with the
tokens: ranks with earlier ranges begin that step earlier, and have neither the hidden states nor the tokens for making drafts.
"""

from torch import Tensor

from omni.device import Graph, Launch
from omni.device.graphs import CapturedGraphs
from omni_ar.attention import KVCache
from omni_ar.run.captured_decodes import graph_name
from omni_ar.run.drafting import Drafting
from omni_ar.run.source import TokenGathering
from omni_ar.run.state import Resources
from omni_ar.run.step import StepContext


class LateDrafts:
    """Launches drafts at the end of a step, and gathers its message to the other ranks, which has them."""

    def __init__(self, stage: Resources, drafting: Drafting, sender: TokenGathering) -> None:
        self._stage = stage
        self._drafting = drafting
        self._sender = sender
        self._graphs = CapturedGraphs[None, Graph](stage.name)

    def clear(self) -> None:
        """Drops the captured graphs, before other pages are allocated."""
        self._graphs.clear()

    def capture(self, rows_B: Tensor, cache: KVCache | None) -> None:
        """Captures the drafts of B rows. cache: `Pages.drafts`."""
        stage, size = self._stage, rows_B.shape[0]
        launches = self._launches(rows_B, stage.limits.max_blocks, cache)
        graph = stage.device.capture(stage.stream, graph_name(f"{stage.name}-propose", size, 0), launches)
        self._graphs.add(None, size, graph)
        self._sender.count_again()  # capturing may have run them

    def launch(self, context: StepContext, cache: KVCache | None) -> bool:
        """The work of a step's sampled rows after their tokens. Returns whether drafts are made."""
        step, stage = context.launch, self._stage
        if not step.count:
            return False
        if not step.draft_blocks:
            stage.device.enqueue(stage.stream, self._sender.gathering(context.rows_R))
            return False
        graph = self._graphs.find(None, step.padded_rows)[1] if step.padded_rows is not None else None
        if graph is not None:
            stage.device.replay(stage.stream, graph)
        else:
            stage.device.enqueue(stage.stream, self._launches(context.rows_R, step.draft_blocks, cache))
        return True

    def _launches(self, rows_R: Tensor, blocks: int, cache: KVCache | None) -> list[Launch]:
        return [*self._drafting.draft_launches(rows_R, blocks, cache), *self._sender.gathering(rows_R)]
