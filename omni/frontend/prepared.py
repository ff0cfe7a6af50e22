"""Checks of prepared requests: a front end's mistake fails the request in its name, before a stage sees it."""

from collections.abc import Iterable, Mapping

import msgspec

from omni.errors import ReturnedError, type_of
from omni.frontend.base import Prepared
from omni.payload import Payload
from omni.pipeline import Pipeline


def checked_prepared(returned: object, pipeline: Pipeline, code: object) -> Prepared:
    """Checks and returns the result of `prepare`.

    Raises ReturnedError, about the method `code`, unless it is a `Prepared` for this pipeline.
    """
    if not isinstance(returned, Prepared):
        raise ReturnedError(f"prepare returned {type_of(returned)}: return a Prepared", code)
    _check_names("inputs", returned.inputs, [stage.name for stage in pipeline.stages], code)
    _check_names("edges", returned.edges, [edge.name for edge in pipeline.edges], code)
    for stage, payloads in returned.inputs.items():
        if not isinstance(payloads, list | tuple) or not all(isinstance(each, Payload) for each in payloads):
            raise ReturnedError(f"Prepared.inputs[{stage!r}] is {type_of(payloads)}: give a list of Payload", code)
    for edge, args in returned.edges.items():
        if not isinstance(args, msgspec.Struct):
            raise ReturnedError(f"Prepared.edges[{edge!r}] is {type_of(args)}: give a msgspec.Struct", code)
    if not isinstance(returned.prompt_tokens, int):
        raise ReturnedError(f"Prepared.prompt_tokens is {type_of(returned.prompt_tokens)}: give a number", code)
    return returned


def _check_names(field: str, given: object, known: Iterable[str], code: object) -> None:
    if not isinstance(given, Mapping):
        raise ReturnedError(f"Prepared.{field} is {type_of(given)}: give a dict", code)
    for name in given:
        if name not in known:
            problem = f"Prepared.{field} names {name!r}: use one of {', '.join(known) or 'none, there are none'}"
            raise ReturnedError(problem, code)
