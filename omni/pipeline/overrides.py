"""Settings by dotted path: `talker.max_num_seqs=8` replaces one field of one stage's options."""

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from omni.errors import ConfigError
from omni.pipeline.pipeline import Pipeline


def parse_override(text: str) -> tuple[str, str]:
    """`"stage.option=value"` as (path, value). Raises ConfigError."""
    path, equals, value = text.partition("=")
    if not equals or "." not in path:
        raise ConfigError("--set", f"{text!r} is not an override", "write stage.option=value")
    return path.strip(), value.strip()


def apply_overrides(pipeline: Pipeline, overrides: Mapping[str, object]) -> Pipeline:
    """The pipeline with options replaced. Values may be of the option's type, or text to be read as JSON or a plain string.

    Raises ConfigError naming the path for an unknown stage or option and for a value of the wrong type.
    """
    stages = {stage.name: stage for stage in pipeline.stages}
    for path, value in overrides.items():
        name, _, option = path.partition(".")
        if name not in stages:
            raise ConfigError(path, f"there is no stage {name!r}", f"use one of {', '.join(stages)}")
        options = _replace(stages[name].options, option, value, path)
        stages[name] = msgspec.structs.replace(stages[name], options=options)
    return msgspec.structs.replace(pipeline, stages=tuple(stages.values()))


def _replace(options: msgspec.Struct, option: str, value: object, path: str) -> msgspec.Struct:
    name, _, rest = option.partition(".")
    types = get_type_hints(type(options))
    if name not in types:
        problem = f"there is no option {name!r}" if name else "names no option"
        raise ConfigError(path, problem, f"use one of {', '.join(types)}")
    current: Any = msgspec.structs.asdict(options)[name]
    if rest:
        if not isinstance(current, msgspec.Struct):
            raise ConfigError(path, f"{name!r} has no fields", f"set {name} itself")
        changed: Any = _replace(current, rest, value, path)
    else:
        changed = _convert(value, types[name], path)
    try:
        return msgspec.structs.replace(options, **{name: changed})
    except (ValueError, TypeError) as error:
        raise ConfigError(path, str(error), "use a value in the range it names") from error


def _convert(value: object, wanted: Any, path: str) -> object:
    candidates = [value]
    if isinstance(value, str):
        try:
            candidates.insert(0, msgspec.json.decode(value.encode()))
        except msgspec.DecodeError:
            candidates.append({"true": True, "false": False, "none": None}.get(value.lower(), value))
    problem = ""
    for candidate in candidates:
        try:
            return msgspec.convert(candidate, wanted)
        except msgspec.ValidationError as error:
            problem = problem or str(error)
    raise ConfigError(path, f"{value!r} does not fit: {problem}", "give a value of that type")
