"""Usage, counters and longest prompts of the stages of an engine, as their workers report them."""

from collections.abc import Mapping

from omni.engine.faults import checked_numbers
from omni.engine.orchestrator import Orchestrator
from omni.errors import OmniError, plugin_call
from omni.stage import StageUsage, StageWorker
from omni.utils.log import safe_logger

_log = safe_logger(__name__)


class StageStats:
    """Reads a worker's usage, counters and longest prompt, and checks them. Raises StageError for a stage that cannot report them;
    of a closed stage usage and counters are empty."""

    def __init__(self, workers: Mapping[str, StageWorker], orchestrator: Orchestrator) -> None:
        self._workers = workers
        self._orchestrator = orchestrator
        self._silent: set[str] = set()
        """Stages whose `usage` fails, which the log has reported."""

    def longest_prompt(self, stage: str) -> int | None:
        """Returns what `Engine.longest_prompt` returns."""
        worker = self._workers[stage]
        with plugin_call(stage, "reporting its longest prompt", type(worker)):
            return worker.longest_prompt

    def usage(self, stage: str) -> StageUsage:
        """Resources in use at it."""
        if stage in self._orchestrator.closed_stages:
            return {}
        worker, doing = self._workers[stage], "reporting its usage"
        with plugin_call(stage, doing, type(worker)):
            usage = worker.usage
        with plugin_call(stage, doing, usage):
            return checked_numbers(usage(), worker, "usage")

    def counters(self, stage: str) -> Mapping[str, int]:
        """Its totals since the start, by name."""
        if stage in self._orchestrator.closed_stages:
            return {}
        worker, doing = self._workers[stage], "reporting its counters"
        with plugin_call(stage, doing, type(worker)):
            counters = worker.counters
        with plugin_call(stage, doing, counters):
            counts = checked_numbers(counters(), worker, "counters")
        return {**counts, **self._orchestrator.counters(stage)}

    def holds(self, stage: str) -> bool:
        """Whether it holds resources. A stage that cannot report them counts as idle; the log reports the reason once."""
        try:
            return any(self.usage(stage).values())
        except OmniError as error:
            if stage not in self._silent:
                self._silent.add(stage)
                _log.error("whether a stage is idle is unknown: %s", error)
            return False
