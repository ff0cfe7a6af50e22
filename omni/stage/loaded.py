"""The loaded stage of kinds that have no pages to divide."""

from dataclasses import dataclass, field

from omni.stage.base import StageWorker
from omni.stage.footprint import Footprint


@dataclass(frozen=True, slots=True)
class PlainStage:
    """A `LoadedStage` whose worker is there already and takes nothing worth measuring."""

    worker: StageWorker
    footprint: Footprint = field(default_factory=Footprint)

    def measure(self) -> int:
        return 0

    def start(self, pages: int) -> StageWorker:
        return self.worker
