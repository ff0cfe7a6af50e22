"""The loaded stage of kinds without pages."""

from dataclasses import dataclass, field

from omni.stage.base import StageWorker
from omni.stage.footprint import Footprint


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A `LoadedStage` with an existing worker and negligible working memory."""

    worker: StageWorker
    footprint: Footprint = field(default_factory=Footprint)

    def measure(self) -> int:
        return 0

    def start(self, pages: int) -> StageWorker:
        return self.worker
