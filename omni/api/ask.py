"""A request's settings, checked before anything is queued."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import msgspec

from omni.errors import InputError, OmniError, check_unicode, quoted, said, shortened
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams, StructuredOutput

Messages: TypeAlias = str | Sequence[Mapping[str, object]]
"""One chat: a list of messages (`omni.frontend.messages`), or a string, the user's only message."""

Requests: TypeAlias = Sequence[Messages]
"""Several chats."""

Sampling: TypeAlias = SamplingParams | Mapping[str, SamplingParams] | None
"""By stage; alone, for `Pipeline.main_stage`."""

_LONGEST_TEXT = 4096
"""Characters of a voice's name and of a salt: requests that wait hold them."""

MAX_SAMPLES = 64
"""Answers that one request may ask for."""

_LISTS = (list, tuple)
_MOST_MODALITIES = 1000
_PARAMETERS = SamplingParams.__struct_fields__


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
    """Raises InputError naming the field, whatever is given."""
    with _reading("modalities"):
        wanted = _modalities(pipeline, modalities)
    with _reading("voice"):
        _check_voice(voice, wanted)
    with _reading("priority"):
        rank = _whole(priority, "priority", -(2**63), 2**63 - 1, "give an int; the lower is served first")
    with _reading("n"):
        samples = _whole(n, "n", 1, MAX_SAMPLES, "give an int")
    with _reading("cache_salt"):
        _check_text(cache_salt, "cache_salt", "give a string")
    with _reading("sampling"):
        checked, fields = _sampling(pipeline, sampling)
    return Ask(wanted, voice, checked, fields, rank, cache_salt, samples)


@contextmanager
def _reading(field: str) -> Iterator[None]:
    """Values may be of the user's own types, which raise what they like."""
    try:
        yield
    except OmniError:
        raise
    except Exception as error:
        raise InputError(field, f"cannot be read: {said(error)}", "give plain Python values") from error


def _modalities(pipeline: Pipeline, modalities: object) -> frozenset[str]:
    known = [output.modality for output in pipeline.outputs]
    remedy = f'give a tuple such as ("{known[0]}",)'
    if modalities is None:
        return frozenset(known)
    if isinstance(modalities, str):
        raise InputError("modalities", f"{quoted(modalities)} is a string", remedy)
    if not isinstance(modalities, Sequence | Set):
        raise InputError("modalities", f"are a {type(modalities).__name__}", remedy)
    given = list(islice(modalities, _MOST_MODALITIES))
    for modality in given:
        # Of strings only: there are values that cannot be compared.
        if not isinstance(modality, str) or modality not in known:
            problem = f"this checkpoint does not give {quoted(modality)}"
            raise InputError("modalities", problem, f"use {' or '.join(map(repr, known))}")
    if not given:
        raise InputError("modalities", "are empty", f"name at least one of {', '.join(map(repr, known))}")
    return frozenset(map(str, given))


def _check_voice(voice: object, wanted: frozenset[str]) -> None:
    if voice is None:
        return
    _check_text(voice, "voice", "give a voice's name")
    if "audio" not in wanted:
        raise InputError(
            "voice", "is given, but no audio is asked for", 'add "audio" to modalities, or leave voice out'
        )


def _check_text(text: object, field: str, remedy: str) -> None:
    if not isinstance(text, str):
        raise InputError(field, f"is a {type(text).__name__}", remedy)
    if len(text) > _LONGEST_TEXT:
        raise InputError(field, f"is {len(text):,} characters long", f"use at most {_LONGEST_TEXT:,}")
    check_unicode(text, field)


def _whole(value: object, field: str, low: int, high: int, remedy: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(field, f"is a {type(value).__name__}", remedy)
    if not low <= value <= high:
        bounds = f"{low} to {high}" if high < 2**32 else "what fits 64 bits"
        raise InputError(field, f"{quoted(value)} is out of range", f"use {bounds}")
    return int(value)


def _sampling(pipeline: Pipeline, sampling: object) -> tuple[Mapping[str, SamplingParams], Mapping[str, str]]:
    """By stage: the parameters, and their field."""
    if sampling is None:
        return {}, {}
    if isinstance(sampling, SamplingParams):
        stage = pipeline.main_stage
        if stage is None:
            raise InputError("sampling", "is given, but no stage of this model samples", "leave it out")
        return {stage: _checked(sampling, "sampling")}, {stage: "sampling"}
    if not isinstance(sampling, Mapping):
        remedy = "give SamplingParams, or a dict of them by stage"
        raise InputError("sampling", f"is a {type(sampling).__name__}", remedy)
    given = dict(sampling)
    for name in given:
        _check_stage(pipeline, name, given)
    fields = {name: f"sampling.{name}" for name in given}
    return {name: _checked(params, fields[name]) for name, params in given.items()}, fields


def _check_stage(pipeline: Pipeline, name: object, given: Mapping[object, object]) -> None:
    names = pipeline.sampling_stages
    if not isinstance(name, str):
        problem = f"has the key {quoted(name)}, a {type(name).__name__}"
        raise InputError("sampling", problem, _by_stage(names, given))
    if name not in names:
        field = f"sampling.{shortened(name)}"
        if name in _PARAMETERS:
            raise InputError(field, "is a parameter, where a stage's name is to be", _by_stage(names, given))
        problem = f"there is no stage {quoted(name)} that samples"
        raise InputError(field, problem, f"use one of {', '.join(names)}" if names else "leave it out")


def _by_stage(names: Sequence[str], given: Mapping[object, object]) -> str:
    """What to give in place of a dict that is not by stage."""
    params = {name: value for name, value in given.items() if isinstance(name, str) and name in _PARAMETERS}
    text = "SamplingParams(" + ", ".join(f"{name}={quoted(value)}" for name, value in params.items()) + ")"
    stages = f", or a dict of stage to SamplingParams, as {{{names[0]!r}: {shortened(text)}}}" if names else ""
    return f"give {shortened(text)}{stages}"


def _checked(params: object, field: str) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        remedy = "give SamplingParams"
        if isinstance(params, Mapping):
            remedy = _by_stage((), params)
        raise InputError(field, f"is a {type(params).__name__}", remedy)
    with _reading(field):
        return _typed(params, field)


def _typed(params: SamplingParams, field: str) -> SamplingParams:
    try:
        # A struct does not check types when it is made in Python.
        given = msgspec.structs.asdict(params)
        if isinstance(params.structured, StructuredOutput):
            given["structured"] = msgspec.structs.asdict(params.structured)
        typed = msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        path = re.search(r"`\$([^`]*)`", place)
        raise InputError(field + (shortened(path[1]) if path else ""), problem, "give a value of that type") from error
    typed.check(field)
    return typed
