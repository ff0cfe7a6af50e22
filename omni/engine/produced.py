"""Checks of what a worker or an adapter gives, before it goes on: so the error names who gave it, not who takes it."""

from collections.abc import Mapping
from typing import Any

from omni.device import Event
from omni.engine.faults import check_audio
from omni.errors import ReturnedError, known, quoted, type_of
from omni.payload import AudioChunk
from omni.stage import Produced, StageWorker

AUDIO = "audio"
"""The modality whose outputs are sound."""
_GIVING = "giving an output"

_events: set[type] = set()
"""Classes that were found to be right: to ask a runtime protocol takes microseconds, for every payload."""


def check_produced(stage: str, produced: Produced, worker: StageWorker) -> None:
    """Raises StageError for an output that no edge could send."""
    ready: object = produced.ready
    tensors: object = produced.payload.tensors
    if type(ready) not in _events:
        if not isinstance(ready, Event):
            problem = f"the ready of a Produced is {type_of(ready)}: give an Event, such as Device.record(stream)"
            raise known(stage, _GIVING, ReturnedError(problem, type(worker)))
        _events.add(type(ready))
    if not isinstance(tensors, Mapping):
        problem = f"the tensors of a Produced's payload are {type_of(tensors)}: give a dict of tensors by name"
        raise known(stage, _GIVING, ReturnedError(problem, type(worker)))


def checked_rate(source: str, meta: object, maker: Any, rate: int | None) -> int:
    """Checks one piece of sound for a user, and returns its rate. source: the stage, or the edge of its adapter. maker: the worker
    or adapter. rate: of the pieces before; None for the first.

    Raises StageError for what is no `AudioChunk`, cannot be played, or has another rate.
    """
    if not isinstance(meta, AudioChunk):
        problem = f"a {type(meta).__name__} on the output {AUDIO!r}: give an omni.payload.AudioChunk"
        raise known(source, _GIVING, ReturnedError(problem, type(maker)))
    check_audio(source, meta, maker)
    if rate is not None and meta.sample_rate != rate:
        problem = f"the rate of an AudioChunk is {quoted(meta.sample_rate)}, after {rate}: keep one rate in an answer"
        raise known(source, _GIVING, ReturnedError(problem, type(maker)))
    return meta.sample_rate
