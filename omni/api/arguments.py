"""Arguments of `generate`, and their checks."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypedDict

import msgspec

from omni.errors import InputError, OmniError, check_unicode, error_text, quoted, shortened
from omni.pipeline import Pipeline
from omni.sampling import SamplingParams, StructuredOutput

Messages: TypeAlias = str | Sequence[Mapping[str, object]]
"""One chat: a list of messages (`omni.frontend.messages`), or a string, the user's only message."""

Requests: TypeAlias = Sequence[Messages]
"""The chats of one call, each a list of messages."""

Sampling: TypeAlias = SamplingParams | Mapping[str, SamplingParams] | None
"""Parameters by stage, or parameters of `Pipeline.main_stage` alone."""

MAX_SAMPLES = 64
"""Maximum of `n`, the number of answers to one request."""

_LONGEST_TEXT = 4096
"""Maximum characters of a voice's name and of a cache salt, which waiting requests keep in memory."""
_MOST_MODALITIES = 1000
_PARAMETERS = SamplingParams.__struct_fields__


class GenerateArguments(TypedDict, total=False):
    """Keyword arguments of `generate` and `complete`.

    modalities: outputs to generate, of `Omni.modalities` or others of `Omni.pipeline.outputs`. Default: None, `Omni.modalities`.
    voice: of `Omni.voices`, for audio. Default: None, the first.
    sampling: by stage, or one for the stage that writes the text (without such a stage, the first that samples). Default: None.
    priority: requests of lower numbers are served first, equal ones in order of arrival. Default: 0.
    cache_salt: only requests of the same salt share cached prompts and media, which separates tenants. Default: "".
    n: answers to each request, 1 to 64, numbered by `Output.sample`; a `Result` has the others in `alternatives`. They differ
    only where sampling is random, so not at temperature 0. Default: 1.
    raw_prompt: a text is the whole prompt, without the chat template. For families that take it. Default: False.
    max_prompt_tokens: a longer prompt is refused before it reaches a stage. Default: None, the limit of the stage.
    """

    modalities: Sequence[str] | None
    voice: str | None
    sampling: Sampling
    priority: int
    cache_salt: str
    n: int
    raw_prompt: bool
    max_prompt_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedArguments:
    """`GenerateArguments` with defaults filled in. prepared: `Pipeline.prepared` of the modalities. sampling: by stage. fields: by
    stage, their name in errors. has_listener: as in `EngineRequest`."""

    modalities: frozenset[str]
    prepared: frozenset[str]
    voice: str | None
    sampling: Mapping[str, SamplingParams]
    fields: Mapping[str, str]
    priority: int = 0
    cache_salt: str = ""
    n: int = 1
    raw_prompt: bool = False
    max_prompt_tokens: int | None = None
    has_listener: bool = True


def check_arguments(pipeline: Pipeline, arguments: GenerateArguments) -> CheckedArguments:
    """Raises InputError naming the field, for any value, and TypeError for an unknown argument."""
    unknown = arguments.keys() - GenerateArguments.__optional_keys__
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
    voice, salt = arguments.get("voice"), arguments.get("cache_salt", "")
    with reading("modalities"):
        modalities = _modalities(pipeline, arguments.get("modalities"))
        prepared = pipeline.prepared(modalities)
    with reading("voice"):
        if voice is not None:
            _check_text(voice, "voice", "give a voice's name")
            if "audio" not in prepared:
                remedy = 'add "audio" to modalities, or leave voice out'
                raise InputError("voice", "needs audio among the modalities", remedy)
    with reading("priority"):
        remedy = "give an int; lower numbers are served first"
        priority = _integer(arguments.get("priority", 0), "priority", -(2**63), 2**63 - 1, remedy)
    with reading("n"):
        n = _integer(arguments.get("n", 1), "n", 1, MAX_SAMPLES, "give an int")
    most = arguments.get("max_prompt_tokens")
    with reading("max_prompt_tokens"):
        if most is not None:
            most = _integer(most, "max_prompt_tokens", 0, 2**63 - 1, "give an int, or None")
    with reading("cache_salt"):
        _check_text(salt, "cache_salt", "give a string")
    with reading("sampling"):
        sampling, fields = _sampling(pipeline, arguments.get("sampling"))
    raw = arguments.get("raw_prompt", False)
    if not isinstance(raw, bool):
        raise InputError("raw_prompt", f"is a {shortened(type(raw).__name__)}", "give True or False")
    return CheckedArguments(
        modalities=modalities,
        prepared=prepared,
        voice=voice,
        sampling=sampling,
        fields=fields,
        priority=priority,
        cache_salt=salt,
        n=n,
        raw_prompt=raw,
        max_prompt_tokens=most,
    )


@contextmanager
def reading(field: str) -> Iterator[None]:
    """Values may be of the user's own types, which may raise anything."""
    try:
        yield
    except OmniError:
        raise
    except Exception as error:
        raise InputError(field, f"cannot be read: {error_text(error)}", "give plain Python values") from error


def _modalities(pipeline: Pipeline, modalities: object) -> frozenset[str]:
    known = [output.modality for output in pipeline.outputs]
    remedy = f'give a tuple such as ("{known[0]}",)'
    if modalities is None:
        return frozenset(pipeline.default_modalities)
    if isinstance(modalities, str):
        raise InputError("modalities", f"{quoted(modalities)} is a string", remedy)
    if not isinstance(modalities, Sequence | Set):
        raise InputError("modalities", f"are a {type(modalities).__name__}", remedy)
    given = list(islice(modalities, _MOST_MODALITIES))
    for modality in given:
        # Only strings are compared: other values may raise.
        if not isinstance(modality, str) or modality not in known:
            problem = f"this checkpoint does not give {quoted(modality)}"
            raise InputError("modalities", problem, f"use {' or '.join(map(repr, known))}")
    if not given:
        raise InputError("modalities", "are empty", f"name at least one of {', '.join(map(repr, known))}")
    return frozenset(map(str, given))


def _check_text(text: object, field: str, remedy: str) -> None:
    if not isinstance(text, str):
        raise InputError(field, f"is a {type(text).__name__}", remedy)
    if len(text) > _LONGEST_TEXT:
        raise InputError(field, f"is {len(text):,} characters long", f"use at most {_LONGEST_TEXT:,}")
    check_unicode(text, field)


def _integer(value: object, field: str, low: int, high: int, remedy: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(field, f"is a {type(value).__name__}", remedy)
    if not low <= value <= high:
        bounds = f"{low} to {high}" if high < 2**32 else "a 64-bit integer"
        raise InputError(field, f"{quoted(value)} is out of range", f"use {bounds}")
    return int(value)


def _sampling(pipeline: Pipeline, sampling: object) -> tuple[Mapping[str, SamplingParams], Mapping[str, str]]:
    """The parameters, and their names in errors, both by stage."""
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
            raise InputError(field, "is a parameter, but a stage's name is expected", _by_stage(names, given))
        problem = f"there is no stage {quoted(name)} that samples"
        raise InputError(field, problem, f"use one of {', '.join(names)}" if names else "leave it out")


def _by_stage(names: Sequence[str], given: Mapping[object, object]) -> str:
    """The remedy for a dict that is not by stage."""
    params = {name: value for name, value in given.items() if isinstance(name, str) and name in _PARAMETERS}
    text = "SamplingParams(" + ", ".join(f"{name}={quoted(value)}" for name, value in params.items()) + ")"
    stages = f", or a dict of stage to SamplingParams, as {{{names[0]!r}: {shortened(text)}}}" if names else ""
    return f"give {shortened(text)}{stages}"


def _checked(params: object, field: str) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        remedy = _by_stage((), params) if isinstance(params, Mapping) else "give SamplingParams"
        raise InputError(field, f"is a {type(params).__name__}", remedy)
    with reading(field):
        try:
            # A struct made in Python does not check types.
            given = msgspec.structs.asdict(params)
            if isinstance(params.structured, StructuredOutput):
                given["structured"] = msgspec.structs.asdict(params.structured)
            typed = msgspec.convert(given, SamplingParams)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at ")
            path = re.search(r"`\$([^`]*)`", place)
            below = shortened(path[1]) if path else ""
            raise InputError(field + below, problem, "give a value of that type") from error
        typed.check(field)
        return typed
