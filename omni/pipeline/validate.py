"""Checks a pipeline as a whole, before any weight is read."""

from collections import Counter
from collections.abc import Iterable
from typing import get_args

import msgspec

from omni.errors import ConfigError, quoted
from omni.pipeline.pipeline import ENGINE, FRONTEND, Pipeline
from omni.pipeline.stage import EDGES, Memory
from omni.plugin.locate import LONGEST_NAME, is_name


def validate(pipeline: Pipeline) -> None:
    """Raises ConfigError for faults of the graph: names, dangling edges, cycles, stages without effect."""
    names = [stage.name for stage in pipeline.stages]
    _check_names(names)
    check_unique(pipeline)
    for index, edge in enumerate(pipeline.edges):
        for end, name in (("producer", edge.producer), ("consumer", edge.consumer)):
            _check_known(f"pipeline.edges[{index}].{end}", name, names)
        if edge.memory not in get_args(Memory):
            problem = f"{quoted(edge.memory)} is unknown"
            raise ConfigError(f"pipeline.edges[{index}].memory", problem, f"use one of {', '.join(get_args(Memory))}")
    for index, output in enumerate(pipeline.outputs):
        _check_known(f"pipeline.outputs[{index}].stage", output.stage, names)
        if not output.hidden_states and not is_name(output.modality):
            field, problem = f"pipeline.outputs[{index}].modality", f"{quoted(output.modality)} is not a name"
            remedy = f'give printable text of at most {LONGEST_NAME} characters, such as "text"'
            raise ConfigError(field, problem, remedy)
    if not pipeline.outputs:
        raise ConfigError("pipeline.outputs", "is empty", "name a stage and the modality it gives")
    if not pipeline.default_modalities:
        raise ConfigError("pipeline.outputs", "has none with default=True", "give one by default")
    _check_hidden_states(pipeline)
    pipeline.order()
    useful = pipeline.active((output.modality for output in pipeline.outputs), names)
    for stage in pipeline.stages:
        if stage.name not in useful:
            problem = "leads to no output"
            raise ConfigError(f"pipeline.stages.{stage.name}", problem, "add an edge or an output, or remove the stage")


def check_unique(pipeline: Pipeline) -> None:
    """Raises ConfigError for two parts of one name, of which `Pipeline.extended` would keep the last."""
    _check_unique("pipeline.stages", (stage.name for stage in pipeline.stages))
    _check_unique("pipeline.edges", (edge.name for edge in pipeline.edges))
    _check_unique("pipeline.outputs", (output.modality for output in pipeline.outputs))


def _check_names(names: list[str]) -> None:
    if not names:
        raise ConfigError("pipeline.stages", "is empty", "add a stage")
    for name in names:
        if name in (EDGES, ENGINE, FRONTEND) or not name.isidentifier() or not is_name(name):
            most = f"of at most {LONGEST_NAME} characters"
            remedy = f"use an identifier {most}, other than {FRONTEND!r}, {ENGINE!r} and {EDGES!r}"
            raise ConfigError("pipeline.stages", f"{quoted(name)} is not a valid name of a stage", remedy)


def _check_unique(field: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(field, f"{quoted(name)} appears {count} times", "give each its own name")


def _check_known(field: str, stage: str, names: list[str]) -> None:
    if stage not in names:
        raise ConfigError(field, f"{quoted(stage)} is not a stage", f"use one of {', '.join(names)}")


def _check_hidden_states(pipeline: Pipeline) -> None:
    """Raises ConfigError for an edge or output of hidden states that its stage does not keep."""
    asking = [(edge.producer, f"edge {edge.name}") for edge in pipeline.edges if edge.hidden_states]
    asking += [(output.stage, f"output {output.modality!r}") for output in pipeline.outputs if output.hidden_states]
    for name, what in asking:
        kept = msgspec.structs.asdict(pipeline.stage(name).options).get("hidden_layers")
        if not kept:
            problem = "is not an option" if kept is None else "is empty"
            remedy = "name layers of a stage of kind 'ar'"
            raise ConfigError(f"{name}.hidden_layers", f"{problem}, and {what} takes hidden states", remedy)
