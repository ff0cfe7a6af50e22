"""Engines in the test's process whose autoregressive stages are cut: the engine has rank 0, and threads have the others."""

import math
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni.engine import Plan
from omni.parallel import RankLayout, Ranks
from omni.stage import StageContext
from omni.testing.ranks import RankThread, ThreadCommunicator, thread_ranks
from omni_ar.kind import ArStageKind, build_rank_model
from omni_ar.loaded import LoadedAr
from omni_ar.run.follower import FollowerWorker
from omni_ar.run.runner import Runner
from omni_ar.run.worker import ArWorker
from tests.support.patience import PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class CutStage:
    """A stage that has started. ranks: rank 0. collectives: its calls when it had started."""

    leader: Runner
    followers: tuple[Runner, ...]
    threads: tuple[RankThread, ...]
    ranks: Ranks
    collectives: int

    def end(self) -> None:
        """Ends the followers, which have run every step of rank 0, and then have its state."""
        # The tokens of the last step may still wait on a simulated device of rank 0, and the others do not end without them.
        self.leader.device.synchronize()
        for thread in self.threads:
            thread.end()
            if thread.error is not None:
                raise thread.error
        expected = state_of(self.leader)
        for follower in self.followers:
            follower.device.synchronize()
            if not follower.has_last_layers:
                continue  # the newest tokens may not be in its rows yet, and it does not sample
            for name, tensor in state_of(follower).items():
                assert torch.equal(tensor, expected[name]), name
        assert calls_of(self.ranks) > self.collectives, "nothing was computed together"


def calls_of(ranks: Ranks) -> int:
    """Number of collectives and sends so far."""
    return sum(each.calls for each in ranks.communicators if isinstance(each, ThreadCommunicator))


def state_of(runner: Runner) -> dict[str, Tensor]:
    """The state of a stage's rows on a device after its steps. Every rank has it whole."""
    rows, pages = runner._state, runner.pages
    null_row = rows.fields.shape[0] - 1
    state = {"fields": rows.fields[:null_row], "tables": rows.block_table, "codes": rows.next_codes[:null_row]}
    if rows.drafts is not None:
        state |= {"drafts": rows.drafts.fields[:null_row], "text": rows.drafts.text[:null_row, :-1]}
    state |= {"counts": rows.sampling.counts[:null_row]}
    return state | ({"frames": pages.codes[1:]} if pages.codes is not None else {})


@dataclass(slots=True)
class CutStages:
    """layout: of the ranks; a number divides each layer into so many shards. names: the stages; None for all autoregressive ones.
    expert_parallel: whether their experts are divided. layers: `ArOptions.pipeline_layers`, by name. step_seconds: of `Ranks`.
    `change` is for the argument of that name of engines. started: by name."""

    layout: RankLayout | int = 2
    names: Collection[str] | None = None
    expert_parallel: bool = False
    layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    step_seconds: float = math.inf
    started: dict[str, CutStage] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        """Batches that the rows of a stage are divided into."""
        return self.layout.pipeline if isinstance(self.layout, RankLayout) else 1

    def change(self, plan: Plan) -> Plan:
        wanted = [name for name in plan.kinds if self.names is None or name in self.names]
        cut = {name: _CutKind(self) for name in wanted if isinstance(plan.kinds[name], ArStageKind)}
        assert cut, "no stage can be cut"
        return replace(plan, kinds={**plan.kinds, **cut})

    def end(self) -> None:
        """After the last request, and before the engine is closed."""
        assert self.started
        for stage in self.started.values():
            stage.end()
        self.started.clear()


class _CutKind(ArStageKind):
    def __init__(self, cut: CutStages) -> None:
        self._cut = cut

    def load(self, context: StageContext) -> LoadedAr:
        opened = thread_ranks(self._cut.layout, PATIENCE_SECONDS)
        first, *others = (replace(ranks, step_seconds=self._cut.step_seconds) for ranks in opened)
        stage = msgspec.structs.replace(context.stage, expert_parallel=self._cut.expert_parallel)
        layers = self._cut.layers.get(stage.name, ())
        context = replace(
            context, stage=stage, options=msgspec.structs.replace(context.options, pipeline_layers=layers)
        )
        # Theirs is never late: they wait in collectives for rank 0.
        followers = [super(_CutKind, self).load(replace(context, ranks=ranks, device=CpuDevice())) for ranks in others]
        return _Leading(replace(context, ranks=first), followers, self._cut)


class _Leading(LoadedAr):
    """Rank 0, which starts the others."""

    def __init__(self, context: StageContext, followers: list[LoadedAr], cut: CutStages) -> None:
        self._followers = followers
        self._cut = cut
        super().__init__(context, build_rank_model(context))

    def measure(self) -> int:
        with self._ranks.silent():
            return max(super().measure(), *(_measured(follower) for follower in self._followers))

    def start(self, pages: int) -> ArWorker | FollowerWorker:
        for follower in self._followers:
            if follower.rows != self.rows:
                follower.set_rows(self.rows)
        with ThreadPoolExecutor(len(self._followers)) as pool:
            starting = [pool.submit(_started, follower, pages) for follower in self._followers]
            worker = super().start(pages)
            self._context.device.synchronize()  # the others wait for the launched work
            workers = [each.result() for each in starting]
        self._cut.started[self._context.stage.name] = CutStage(
            self._present_runner,
            tuple(follower._present_runner for follower in self._followers),
            tuple(map(RankThread, workers)),
            self._ranks,
            calls_of(self._ranks),
        )
        return worker

    @property
    def _ranks(self) -> Ranks:
        assert self._context.ranks is not None
        return self._context.ranks


def _measured(stage: LoadedAr) -> int:
    ranks = stage._context.ranks
    assert ranks is not None
    with ranks.silent():
        return stage.measure()


def _started(stage: LoadedAr, pages: int) -> ArWorker | FollowerWorker:
    with torch.inference_mode():
        worker = stage.start(pages)
        stage._present_runner.device.synchronize()
        return worker
