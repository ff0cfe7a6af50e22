"""The adapter contract: the conversion of produced payloads into inputs of the consumer."""

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Protocol, runtime_checkable

import msgspec

from omni.errors import ReturnedError, type_of
from omni.payload import Payload
from omni.payload.checks import checked_tensors

_TENSORS = "the adapter returned a payload whose tensors"


@runtime_checkable
class Adapter(Protocol):
    """Converts one request's produced payloads into the consumer's inputs, incrementally. Host work only, brief, and in
    order.

    It does not access the contents of tensors. A tensor must be passed on by the `push` that received it; other tensors
    are released to the producer at once. A page slice is passed on as the same object, since its producer may move its
    rows.
    """

    def push(self, payload: Payload) -> Sequence[Payload]:
        """Converts a payload. Returns the consumer inputs that it completes, possibly none."""
        ...

    def finish(self, reason: str) -> Sequence[Payload]:
        """Returns the consumer inputs that the producer's end completes. reason: as in `Done`. Called once, last."""
        ...


class AdapterFactory(Protocol):
    """The type of `Edge.adapter`. Called once for each request that uses the edge."""

    def __call__(self, args: msgspec.Struct | None) -> Adapter:
        """args: the front end's arguments for this edge and request, or None."""
        ...


class PassThrough:
    """The adapter of an edge whose consumer takes the producer's payloads unchanged."""

    def __init__(self, args: msgspec.Struct | None = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,)

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


def as_inputs(returned: object, code: object) -> Sequence[Payload]:
    """The result of `push` or `finish`. Raises ReturnedError, about the method `code`, unless it is a sequence of payloads."""
    if not isinstance(returned, list | tuple):
        problem = f"the adapter returned {type_of(returned)}: return a list of Payload, empty if no input is complete"
        raise ReturnedError(problem, code)
    inputs = list(returned)  # one that the plugin derived from list may change, or raise, when it is read again
    for index, each in enumerate(inputs):
        if not isinstance(each, Payload):
            raise ReturnedError(
                f"the adapter returned {type_of(each)} at index {index}: return a list of Payload", code
            )
        inputs[index] = _checked_payload(each, index, code)
    return inputs


def _checked_payload(payload: Payload, index: int, code: object) -> Payload:
    meta: object = payload.meta
    tensors: object = payload.tensors
    if not isinstance(meta, msgspec.Struct):
        problem = f"the payload at index {index} has {type_of(meta)} as meta: give a msgspec.Struct"
        raise ReturnedError(f"the adapter returned a list, and {problem}", code)
    if type(tensors) is not dict and not isinstance(tensors, Mapping):
        problem = f"the payload at index {index} has {type_of(tensors)} as tensors: give a dict of tensors by name"
        raise ReturnedError(f"the adapter returned a list, and {problem}", code)
    plain = checked_tensors(tensors, _TENSORS, code)
    return payload if plain is tensors else Payload(payload.meta, plain)


def as_adapter(made: object, code: object) -> Adapter:
    """The result of a factory. Raises ReturnedError, about the factory `code`, unless it has the methods of an adapter."""
    if not isinstance(made, Adapter):
        problem = f"the factory returned {type_of(made)}: return an Adapter, with the methods push and finish"
        raise ReturnedError(problem, code)
    if isclass(made):
        raise ReturnedError(f"the factory returned the class {made.__name__}: return an object of it", code)
    methods: tuple[tuple[str, object], ...] = (("push", made.push), ("finish", made.finish))
    for name, method in methods:
        if not callable(method):
            problem = f"the adapter's {name} is {type_of(method)}, not a method: give the attribute another name"
            raise ReturnedError(problem, code)
    return made
