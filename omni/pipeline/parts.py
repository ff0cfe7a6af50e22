"""Checks types of a pipeline's parts and their fields. msgspec checks only decoded structs, and a pipeline is built by calls."""

from typing import Any

import msgspec

from omni.errors import ReturnedError, quoted, type_of
from omni.pipeline.pipeline import Pipeline
from omni.pipeline.stage import Edge, PipelineOutput, Stage
from omni.utils.struct_types import STRUCT_TYPES

_PARTS: dict[str, type[msgspec.Struct]] = {"stages": Stage, "edges": Edge, "outputs": PipelineOutput}
_CHECKED_LATER = {*_PARTS, "options", "memory"}
"""`validate` names the values of `memory`."""


def check_parts(pipeline: Pipeline, code: object) -> None:
    """Raises ReturnedError for a part or a field of another type. code: the function that returned the pipeline."""
    _check_fields("pipeline", pipeline, code)
    for name, kind in _PARTS.items():
        parts: object = msgspec.structs.asdict(pipeline)[name]
        field = f"pipeline.{name}"
        if not isinstance(parts, list | tuple):
            raise ReturnedError(f"{field} is {type_of(parts)}: give a tuple of {kind.__name__}", code)
        for index, part in enumerate(parts):
            if not isinstance(part, kind):
                raise ReturnedError(f"{field}[{index}] is {type_of(part)}: give {kind.__name__}(...)", code)
            _check_fields(_name(field, index, part), part, code)
            if isinstance(part, Stage):
                _check_options(part, code)


def _name(field: str, index: int, part: object) -> str:
    named = isinstance(part, Stage) and isinstance(part.name, str) and part.name
    return f"{field}.{named}" if named else f"{field}[{index}]"


def _check_fields(path: str, part: msgspec.Struct, code: object) -> None:
    values: dict[str, Any] = msgspec.structs.asdict(part)
    for field in msgspec.structs.fields(part):
        if field.name in _CHECKED_LATER:
            continue
        try:
            with STRUCT_TYPES:
                msgspec.convert(values[field.name], field.type)
        except msgspec.ValidationError as error:
            problem = f"{path}.{field.name} is {quoted(values[field.name])}: {error}"
            raise ReturnedError(problem, code) from error


def _check_options(stage: Stage, code: object) -> None:
    options: object = stage.options
    frozen = isinstance(options, msgspec.Struct) and options.__struct_config__.frozen
    if not frozen:
        given = (
            type_of(options) if not isinstance(options, msgspec.Struct) else f"{type_of(options)} that is not frozen"
        )
        remedy = f"give the options of kind {stage.kind!r}, a frozen msgspec.Struct"
        raise ReturnedError(f"pipeline.stages.{stage.name}.options is {given}: {remedy}", code)
