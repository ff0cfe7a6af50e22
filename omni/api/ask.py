"""A request's settings, checked before anything is queued."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from omni.errors import InputError
from omni.pipeline import Pipeline
from omni.sampling_params import SamplingParams, StructuredOutput

Messages: TypeAlias = str | Sequence[Mapping[str, object]]
"""One chat: a list of messages (`omni.frontend.messages`), or a string, the user's only message."""

Requests: TypeAlias = Sequence[Messages]
"""Several chats."""

Sampling: TypeAlias = SamplingParams | Mapping[str, SamplingParams] | None
"""By stage; alone, for `Pipeline.main_stage`."""

MAX_SAMPLES = 64
"""Answers that one request may ask for."""

_LISTS = (list, tuple)


@dataclass(frozen=True, slots=True)
class Ask:
    """How to answer.

    sampling: by stage. fields: by stage, how to name its sampling in errors. priority, cache_salt: as in `EngineRequest`.
    samples: answers to each request.
    """

    modalities: frozenset[str]
    voice: str | None
    sampling: Mapping[str, SamplingParams]
    fields: Mapping[str, str]
    priority: int = 0
    cache_salt: str = ""
    samples: int = 1


def split_requests(messages: object) -> tuple[list[object], bool]:
    """The requests, and whether a list of them was given: a list (or tuple) of nothing but lists and strings is one."""
    if not isinstance(messages, _LISTS) or not messages or not all(isinstance(m, (*_LISTS, str)) for m in messages):
        return [messages], False
    return list(messages), True


def check_ask(
    pipeline: Pipeline,
    modalities: Sequence[str] | None,
    voice: str | None,
    sampling: Sampling,
    priority: int = 0,
    cache_salt: str = "",
    n: int = 1,
) -> Ask:
    """Raises InputError naming the field."""
    wanted = _modalities(pipeline, modalities)
    if voice is not None:
        if not isinstance(voice, str):
            raise InputError("voice", f"is a {type(voice).__name__}", "give a voice's name")
        if "audio" not in wanted:
            problem = "is given, but no audio is asked for"
            raise InputError("voice", problem, 'add "audio" to modalities, or leave voice out')
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InputError("priority", f"is a {type(priority).__name__}", "give an int; the lower is served first")
    if not isinstance(n, int) or isinstance(n, bool):
        raise InputError("n", f"is a {type(n).__name__}", "give an int")
    if not 1 <= n <= MAX_SAMPLES:
        raise InputError("n", f"{n} is out of range", f"use 1 to {MAX_SAMPLES}")
    if not isinstance(cache_salt, str):
        raise InputError("cache_salt", f"is a {type(cache_salt).__name__}", "give a string")
    try:
        cache_salt.encode()
    except UnicodeEncodeError as error:
        problem = f"is no valid Unicode: {error.reason} at {error.start}"
        raise InputError("cache_salt", problem, "remove lone surrogates") from error
    checked, fields = _sampling(pipeline, sampling)
    return Ask(wanted, voice, checked, fields, priority, cache_salt, n)


def _modalities(pipeline: Pipeline, modalities: Sequence[str] | None) -> frozenset[str]:
    known = [output.modality for output in pipeline.outputs]
    if modalities is None:
        return frozenset(known)
    if isinstance(modalities, str):
        raise InputError("modalities", f"{modalities!r} is a string", f'give a tuple such as ("{known[0]}",)')
    for modality in modalities:
        if modality not in known:
            problem = f"this checkpoint does not give {modality!r}"
            raise InputError("modalities", problem, f"use {' or '.join(map(repr, known))}")
    if not modalities:
        raise InputError("modalities", "are empty", f"name at least one of {', '.join(map(repr, known))}")
    return frozenset(modalities)


def _sampling(pipeline: Pipeline, sampling: Sampling) -> tuple[Mapping[str, SamplingParams], Mapping[str, str]]:
    """By stage: the parameters, and their field."""
    if sampling is None:
        return {}, {}
    if isinstance(sampling, SamplingParams):
        stage = pipeline.main_stage
        if stage is None:
            raise InputError("sampling", "is given, but no stage of this model samples", "leave it out")
        return {stage: _checked(sampling, "sampling")}, {stage: "sampling"}
    given: object = sampling
    if not isinstance(given, Mapping):
        remedy = "give SamplingParams, or a dict of them by stage"
        raise InputError("sampling", f"is a {type(given).__name__}", remedy)
    names = pipeline.sampling_stages
    for name in sampling:
        if name not in names:
            raise InputError(
                f"sampling.{name}", f"there is no stage {name!r} that samples", f"use one of {', '.join(names)}"
            )
    fields = {name: f"sampling.{name}" for name in sampling}
    return {name: _checked(params, fields[name]) for name, params in sampling.items()}, fields


def _checked(params: object, field: str) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InputError(field, f"is a {type(params).__name__}", "give SamplingParams")
    try:
        # A struct does not check types when it is made in Python.
        given = msgspec.structs.asdict(params)
        if isinstance(params.structured, StructuredOutput):
            given["structured"] = msgspec.structs.asdict(params.structured)
        typed = msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        path = re.search(r"`\$([^`]*)`", place)
        raise InputError(field + (path[1] if path else ""), problem, "give a value of that type") from error
    typed.check(field)
    return typed
