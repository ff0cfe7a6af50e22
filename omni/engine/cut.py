"""The stages of an engine that are cut across engines, with its rank in each."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from omni.engine.placement import Placement
from omni.engine.rows import MemoryPlan
from omni.parallel import RankLayout, Ranks, silent_ranks
from omni.parallel.channel import MessageCounter
from omni.parallel.rendezvous import RankResources, open_ranks

Redivide = Callable[[MemoryPlan, Mapping[str, int]], MemoryPlan]
"""Divides the memory again, with other numbers of rows by stage."""


@dataclass(frozen=True, slots=True)
class CutStages:
    """ranks, layouts: by stage, in the order of the pipeline."""

    ranks: Mapping[str, Ranks] = field(default_factory=dict)
    layouts: Mapping[str, RankLayout] = field(default_factory=dict)

    @classmethod
    def open(
        cls, placement: Placement, place: str, device: torch.device, resources: Mapping[str, RankResources]
    ) -> "CutStages":
        """The cut stages of a place. resources: by stage. Waits for the engines of the other ranks."""
        opened: dict[str, Ranks] = {}
        # By the place of the other engine: rank 0 of all stages that share one is in the same engine.
        counters = defaultdict[str, MessageCounter](MessageCounter)
        try:
            for stage, rank in placement.ranks_on(place).items():
                places = placement.ranks[stage]
                shared = {other: counters[places[other]] for other in (range(1, len(places)) if not rank else (0,))}
                opened[stage] = open_ranks(rank, placement.layouts[stage], device, resources[stage], shared)
        except BaseException:
            cls(opened).close()
            raise
        return cls(opened, placement.layouts)

    @classmethod
    def alone(cls, placement: Placement, place: str | None = None) -> "CutStages":
        """The cut stages of a place, without the other ranks: for shapes and footprints. place: None for rank 0 of every stage."""
        numbers = dict.fromkeys(placement.ranks, 0) if place is None else placement.ranks_on(place)
        layouts = placement.layouts
        return cls({stage: silent_ranks(rank, layouts[stage]) for stage, rank in numbers.items()}, layouts)

    @property
    def silenced(self) -> "CutStages":
        """The same stages without the other ranks."""
        alone = {stage: silent_ranks(ranks.rank, self.layouts[stage]) for stage, ranks in self.ranks.items()}
        return CutStages(alone, self.layouts)

    @property
    def followed(self) -> frozenset[str]:
        """Stages with another rank than 0 here."""
        return frozenset(stage for stage, ranks in self.ranks.items() if ranks.rank)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While entered, no collective involves another rank."""
        with ExitStack() as stack:
            for ranks in self.ranks.values():
                stack.enter_context(ranks.silent())
            yield

    def agree(self, plan: MemoryPlan, redivide: Redivide) -> MemoryPlan:
        """The plan with rows and pages that all ranks have: the least of theirs. Waits for them."""
        rows = {stage: plan.memory[stage].rows or 0 for stage in self.ranks}
        least = {stage: ranks.all_reduce_min("rows", rows[stage]) for stage, ranks in self.ranks.items()}
        if least != rows:
            plan = redivide(plan, least)
        memory = dict(plan.memory)
        for stage, ranks in self.ranks.items():
            memory[stage] = replace(memory[stage], pages=ranks.all_reduce_min("pages", memory[stage].pages))
        return replace(plan, memory=memory)

    def close(self) -> None:
        for ranks in self.ranks.values():
            ranks.close()
