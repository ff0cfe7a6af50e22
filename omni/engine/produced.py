"""Checks outputs of workers and adapters before they are passed on, so that errors name their producer and not their consumer."""

from omni.device import Event
from omni.errors import ReturnedError, as_omni_error, quoted, type_of
from omni.payload import AudioChunk, Payload
from omni.payload.checks import checked_tensors
from omni.stage import Produced, StageWorker

AUDIO = "audio"
"""The modality whose outputs are sound."""
_GIVING = "giving an output"
_TENSORS = "Produced.payload.tensors"

_events: set[type] = set()
"""Classes that passed the check: `isinstance` with a runtime protocol takes microseconds, for every payload."""


def check_produced(stage: str, produced: Produced, worker: StageWorker) -> None:
    """Raises StageError or ReturnedError for an output that no edge could send."""
    ready: object = produced.ready
    if type(ready) not in _events:
        if not isinstance(ready, Event):
            problem = f"the ready of a Produced is {type_of(ready)}: give an Event, such as Device.record(stream)"
            raise as_omni_error(stage, _GIVING, ReturnedError(problem, type(worker)))
        _events.add(type(ready))
    given = produced.payload.tensors
    tensors = checked_tensors(given, _TENSORS, type(worker))
    if tensors is not given:
        produced.payload = Payload(produced.payload.meta, tensors)


def check_sound(
    rates: dict[str, int], modality: str, stage: str, produced: Produced, worker: StageWorker, *, onward: bool
) -> None:
    """Checks an output of a stage for a user, if it is sound, and keeps its rate in `rates`, by stage. onward: whether the stage
    has consumers, which may get payloads other than `AudioChunk`. Raises StageError."""
    meta = produced.payload.meta
    sound = isinstance(meta, AudioChunk)
    if sound or (modality == AUDIO and (produced.for_user or not onward)):
        rates[stage] = checked_rate(stage, meta, type(worker), rates.get(stage))


def checked_rate(source: str, meta: object, code: object, rate: int | None) -> int:
    """Checks one piece of sound for a user, and returns its rate. source: the stage, or the edge of its adapter. code: its maker.
    rate: of the pieces before; None for the first.

    Raises StageError for other payloads than `AudioChunk`, and for another rate. `omni.engine.values.give` checks the samples.
    """
    if not isinstance(meta, AudioChunk):
        problem = f"a {type(meta).__name__} on the output {AUDIO!r}: give an omni.payload.AudioChunk"
        raise as_omni_error(source, _GIVING, ReturnedError(problem, code))
    if rate is not None and meta.sample_rate != rate:
        problem = f"the rate of an AudioChunk is {quoted(meta.sample_rate)}, after {rate}: keep one rate in an answer"
        raise as_omni_error(source, _GIVING, ReturnedError(problem, code))
    return meta.sample_rate
