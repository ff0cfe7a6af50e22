"""Checks of prepared requests: a front end's mistake fails the request in its name, before a stage sees it."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import torch

from omni.errors import ReturnedError, error_text, quoted, type_of
from omni.frontend.base import Prepared
from omni.ipc import Codec, Typed
from omni.payload import Payload
from omni.payload.checks import checked_tensors
from omni.pipeline import Pipeline

_MOST_TOKENS = 2**63
"""The engine may run in another process: messages hold numbers of 64 bits."""


def checked_prepared(returned: object, pipeline: Pipeline, modalities: Collection[str], code: object) -> Prepared:
    """Checks and returns the result of `prepare`. modalities: the requested ones.

    Its dicts and lists are plain ones then. Raises ReturnedError, about the method `code`, unless it is a `Prepared` for this
    pipeline.
    """
    if not isinstance(returned, Prepared):
        raise ReturnedError(f"prepare returned {type_of(returned)}: return a Prepared", code)
    _check_names("inputs", returned.inputs, [stage.name for stage in pipeline.stages], code)
    _check_names("edges", returned.edges, [edge.name for edge in pipeline.edges], code)
    inputs: dict[str, Sequence[Payload]] = {}
    for stage, payloads in returned.inputs.items():
        if not isinstance(payloads, list | tuple) or not all(isinstance(each, Payload) for each in payloads):
            raise ReturnedError(f"Prepared.inputs[{stage!r}] is {type_of(payloads)}: give a list of Payload", code)
        inputs[stage] = [
            _checked_payload(f"Prepared.inputs[{stage!r}][{index}]", payload, code)
            for index, payload in enumerate(payloads)
        ]
    for edge, args in returned.edges.items():
        if not isinstance(args, msgspec.Struct):
            raise ReturnedError(f"Prepared.edges[{edge!r}] is {type_of(args)}: give a msgspec.Struct", code)
        _check_sendable(f"Prepared.edges[{edge!r}]", args, code)
    _check_reach(returned, pipeline, modalities, code)
    tokens: object = returned.prompt_tokens
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise ReturnedError(f"Prepared.prompt_tokens is {type_of(tokens)}: give a number", code)
    if not 0 <= tokens < _MOST_TOKENS:
        problem = f"Prepared.prompt_tokens is {quoted(tokens)}: give 0 or more, below {_MOST_TOKENS:,}"
        raise ReturnedError(problem, code)
    return Prepared(inputs, dict(returned.edges), tokens)


def _check_reach(prepared: Prepared, pipeline: Pipeline, modalities: Collection[str], code: object) -> None:
    """Raises ReturnedError unless the inputs lead to every requested output."""
    reached = pipeline.active(modalities, prepared.inputs)
    for output in pipeline.outputs:
        if output.modality in modalities and output.stage not in reached:
            given = f"names {', '.join(map(repr, prepared.inputs))}" if prepared.inputs else "is empty"
            problem = f"and output {output.modality!r} comes from stage {output.stage!r}, to which no input leads"
            remedy = f"give payloads for {output.stage!r}, or for a stage before it"
            raise ReturnedError(f"Prepared.inputs {given}, {problem}: {remedy}", code)


def _checked_payload(field: str, payload: Payload, code: object) -> Payload:
    meta: object = payload.meta
    if not isinstance(meta, msgspec.Struct):
        raise ReturnedError(f"{field}.meta is {type_of(meta)}: give a msgspec.Struct", code)
    _check_sendable(f"{field}.meta", meta, code)
    tensors = checked_tensors(payload.tensors, f"{field}.tensors", code)
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
            given = f"on {tensor.device}" if isinstance(tensor, torch.Tensor) else type_of(tensor)
            raise ReturnedError(f"{field}.tensors[{name!r}] is {given}: give a tensor on the CPU", code)
    return payload if tensors is payload.tensors else Payload(meta, tensors)


def _check_sendable(field: str, struct: msgspec.Struct, code: object) -> None:
    """The engine may run in another process, so a struct must survive encoding and decoding. It is checked wherever the engine
    runs."""
    try:
        _CODECS.codec.decode(*_CODECS.codec.encode(Typed(struct)))
    except Exception as error:
        problem = f"{field} cannot be sent to the engine's process: {error_text(error)}"
        remedy = "give a struct defined at the top of a module, with values of its fields' types"
        raise ReturnedError(f"{problem}: {remedy}", code) from error


class _Codecs(threading.local):
    """One encoder for each thread that prepares requests."""

    def __init__(self) -> None:
        self.codec: Codec[Typed[msgspec.Struct]] = Codec(Typed, inline_bytes=None)


_CODECS = _Codecs()


def _check_names(field: str, given: object, known: Iterable[str], code: object) -> None:
    if not isinstance(given, Mapping):
        raise ReturnedError(f"Prepared.{field} is {type_of(given)}: give a dict", code)
    for name in given:
        if name not in known:
            problem = f"Prepared.{field} names {name!r}: use one of {', '.join(known) or 'none, there are none'}"
            raise ReturnedError(problem, code)
