"""The settings of a stage that cut it across engines, checked against its kind; replicas for a kind that is not cut by tensors."""

import msgspec

from omni.engine.placement import check_count, places_of
from omni.errors import ConfigError, quoted
from omni.pipeline import Stage
from omni.pipeline.stage import MOST_RANKS
from omni.stage import ExpertParallelKind, PipelineParallelKind, StageKind, TensorParallelKind


def check_parallelism(stage: Stage, kind: StageKind) -> tuple[Stage, str | None]:
    """The stage as it runs. One of a kind that is not cut by tensors has replicas instead: the whole model on each of its places,
    and the settings of one rank. For such a stage also the reason, for the log and for `omni explain`.

    Raises ConfigError for an invalid number of ranks, for one that the kind does not support, and for places that are neither those
    of the ranks nor several times as many.
    """
    _check_numbers(stage, kind)
    if stage.tensor_parallel > 1 and not _cut_by_tensors(kind):
        return _replicated(stage)
    _check_experts(stage, kind)
    return stage, None


def _cut_by_tensors(kind: StageKind) -> bool:
    return isinstance(kind, TensorParallelKind) and kind.tensor_parallel


def _check_numbers(stage: Stage, kind: StageKind) -> None:
    tensor, pipeline = stage.tensor_parallel, stage.pipeline_parallel
    field = f"{stage.name}.pipeline_parallel"
    for name, number in ((f"{stage.name}.tensor_parallel", tensor), (field, pipeline)):
        if not isinstance(number, int) or not 1 <= number <= MOST_RANKS:
            raise ConfigError(name, f"is {quoted(number)}", f"give a number from 1 to {MOST_RANKS}")
    if pipeline > 1 and not (isinstance(kind, PipelineParallelKind) and kind.pipeline_parallel):
        problem = f"is {pipeline}, and stages of kind {stage.kind!r} are not cut by layers"
        remedy = f"leave it out; {stage.name}.place with several places makes replicas of the whole stage"
        raise ConfigError(field, problem, remedy)
    if pipeline > 1 and tensor > 1 and not _cut_by_tensors(kind):
        problem = f"is {tensor}, and stages of kind {stage.kind!r} are cut by layers only"
        raise ConfigError(f"{stage.name}.tensor_parallel", problem, "leave it out")
    if pipeline == 1 and msgspec.structs.asdict(stage.options).get("pipeline_layers"):
        problem = f"is given, and {field} is 1: all layers are in one place"
        remedy = f"set {field} to the number of layer ranges, or leave it out"
        raise ConfigError(f"{stage.name}.pipeline_layers", problem, remedy)
    if stage.ranks > MOST_RANKS:
        problem = f"is {pipeline}, which with tensor_parallel={tensor} is {stage.ranks} ranks"
        raise ConfigError(field, problem, f"use at most {MOST_RANKS} ranks")


def _check_experts(stage: Stage, kind: StageKind) -> None:
    """Raises ConfigError for `expert_parallel` if the kind does not support it, or if there is one rank."""
    _check_flag(stage)
    field, value = f"{stage.name}.expert_parallel", stage.expert_parallel
    if value and not (isinstance(kind, ExpertParallelKind) and kind.expert_parallel):
        problem = f"is true, and stages of kind {stage.kind!r} have no experts to divide"
        raise ConfigError(field, problem, "leave it out")
    if value and stage.tensor_parallel == 1:
        problem = f"is true, and {stage.name}.tensor_parallel is 1: there is one rank, which holds all experts"
        raise ConfigError(field, problem, f"set {stage.name}.tensor_parallel to the number of ranks, or leave it out")


def _check_flag(stage: Stage) -> None:
    value: object = stage.expert_parallel
    if not isinstance(value, bool):
        raise ConfigError(f"{stage.name}.expert_parallel", f"is {quoted(value)}", "give true or false")


def _replicated(stage: Stage) -> tuple[Stage, str]:
    _check_flag(stage)
    places = places_of(stage.place, f"{stage.name}.place")
    # Several times as many are replicas of a stage of ranks, each of which is a replica here.
    if not places or len(places) % stage.ranks:
        check_count(stage, places or ("engine.device",), "replica")
    instead = f"tensor_parallel={stage.tensor_parallel}{' and expert_parallel=true' if stage.expert_parallel else ''}"
    reason = (
        f"kind {stage.kind!r} is not cut by tensors: {len(places)} replicas of the whole model instead of {instead}"
    )
    return msgspec.structs.replace(stage, tensor_parallel=1, expert_parallel=False), reason
