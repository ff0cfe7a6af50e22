"""Checks of the values in outputs of stages and adapters. A value that cannot be sent to another process fails its own request
here, also in an engine of the user's process. In a message with several requests it would fail all of them."""

from collections.abc import Sequence

import msgspec
import numpy as np

from omni.engine.request import SafeSink, StageOutput, UnsendableOutput
from omni.errors import ReturnedError, as_omni_error, is_unicode, printable_error, quoted, type_of
from omni.payload import AudioChunk, GeneratedTokens
from omni.stage import Done

_LEAST, _MOST = -(2**63), 2**63 - 1
_GIVING = "giving an output"
_VALUES = msgspec.msgpack.Encoder(enc_hook=lambda value: None)
"""Encodes text and numbers only: arrays and other objects are checked where they are sent."""


def is_number(value: object) -> bool:
    """Whether it is a whole number of 64 bits. A bool is none."""
    return (type(value) is int or isinstance(value, np.integer)) and bool(_LEAST <= value <= _MOST)


def is_text(value: object) -> bool:
    """Whether it is text in valid Unicode."""
    return isinstance(value, str) and (value.isascii() or is_unicode(value))


def check_tokens(stage: str, tokens: GeneratedTokens, code: object) -> None:
    """Raises StageError for ids that are not a tuple of numbers. code: the method that made them."""
    problem = _tokens_problem(tokens)
    if problem is not None:
        raise as_omni_error(stage, _GIVING, ReturnedError(problem, code))


def checked_done(stage: str, done: Done, code: object) -> Done:
    """Raises StageError for a reason, counts or withheld tokens that cannot be given to the user. code: its maker. Returns it with
    plain values."""
    if not is_text(done.reason):
        problem = f"the reason of a Done is {quoted(done.reason)}: give valid Unicode"
    elif not all(is_text(name) and is_number(count) for name, count in done.counts.items()):
        problem = f"the counts of a Done are {quoted(done.counts)}: give a dict of numbers of 64 bits by name"
    elif not _are_numbers(done.withheld):
        problem = f"the withheld tokens of a Done are {quoted(done.withheld)}: give a tuple of numbers of 64 bits"
    else:
        counts = {str.__str__(name): int(count) for name, count in done.counts.items()}
        return Done(done.request_id, str.__str__(done.reason), counts, tuple(done.withheld))
    raise as_omni_error(stage, "running", ReturnedError(problem, code))


def give(sink: SafeSink, output: StageOutput, stage: str, code: object) -> None:
    """Gives an output to the sink. Raises StageError for values that a user cannot get, or if the sink raises. stage: or the
    edge. code: the method that made the output."""
    try:
        problem = _problem(output.meta)
        if problem is not None:
            raise UnsendableOutput(problem)
        sink.give(output)
    except UnsendableOutput as error:
        raise as_omni_error(stage, _GIVING, ReturnedError(str(error), code)) from error
    except Exception as error:  # raised when a value is read
        raise as_omni_error(stage, _GIVING, error, code) from printable_error(error)


def _problem(meta: msgspec.Struct) -> str | None:
    if isinstance(meta, GeneratedTokens):
        return _tokens_problem(meta)
    if isinstance(meta, AudioChunk):
        return _audio_problem(meta)
    try:
        _VALUES.encode(meta)
    except (UnicodeEncodeError, OverflowError) as error:
        return f"{type_of(meta)} cannot be given: {error}; give valid Unicode, and numbers of 64 bits"
    except Exception:  # other types matter only if the value is sent to another process
        return None
    return None


def _tokens_problem(tokens: GeneratedTokens) -> str | None:
    ids: object = tokens.ids
    if not isinstance(ids, tuple | list):
        return f"the ids of a GeneratedTokens are {type_of(ids)}: give a tuple of numbers"
    if not _are_numbers(ids):
        return f"the ids of a GeneratedTokens are {quoted(ids)}: give a tuple of numbers of 64 bits"
    ends: object = tokens.ends
    if not isinstance(ends, bool):
        return f"`ends` of a GeneratedTokens is {quoted(ends)}: give True or False"
    return None


def _are_numbers(values: Sequence[object]) -> bool:
    for value in values:  # it runs for each token
        if type(value) is not int or not _LEAST <= value <= _MOST:
            break
    else:
        return True
    return all(map(is_number, values))


def _audio_problem(chunk: AudioChunk) -> str | None:
    """The error for samples that cannot be played, or for an invalid rate."""
    samples, rate = chunk.samples, chunk.sample_rate
    if not isinstance(samples, np.ndarray) or samples.dtype != np.float32 or samples.ndim != 1:
        given = f"{samples.dtype} {list(samples.shape)}" if isinstance(samples, np.ndarray) else type_of(samples)
        return f"the samples of an AudioChunk are {given}: give a float32 array [n]"
    if type(rate) is not int or not 0 < rate <= _MOST:
        return f"the rate of an AudioChunk is {quoted(rate)}: give Hz, a positive number"
    if not np.isfinite(samples).all():
        return "samples of an AudioChunk are NaN or infinite: see the model, and its dtype"
    return None
