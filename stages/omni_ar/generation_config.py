"""Sampling as a checkpoint's generation_config.json has it, with transformers' meaning. Torch-free, as options are."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from omni.errors import CheckpointError, InputError
from omni.sampling import SamplingParams
from omni_ar.options import GREEDY

_log = logging.getLogger(__name__)

_FILE = "generation_config.json"
_RESTORE = "correct it or download it again"
_EndIds: Any = int | tuple[int, ...] | None

_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "stop_token_ids": "eos_token_id",
    "suppress_token_ids": "suppress_tokens",
}
"""Of fields that have another in the file."""

_DRAWS: Mapping[str, object] = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}
_EDITS: Mapping[str, object] = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "max_time": None,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": 0,
    "token_healing": False,
    "watermarking_config": None,
}
"""What transformers heeds and no parameter here can say, where tokens are drawn and always; and what leaves results as they are."""


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What is heeded of the file, with transformers' defaults."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    min_length: int = 0
    eos_token_id: int | tuple[int, ...] = ()
    stop_strings: str | tuple[str, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()


def sampling_defaults(
    generation: Mapping[str, Any], eos: object, vocab_size: int, *, eos_field: str = "config.json: eos_token_id"
) -> SamplingParams:
    """Defaults as a checkpoint's generation_config.json has them. eos: the end ids if that file names none, which stand in
    `eos_field`: an id, a list of ids, or None.

    Logs a warning that names what changes results in transformers and cannot be said here. Raises CheckpointError for values that
    are no sampling parameters, and for ids of an end or of a bad word outside the vocabulary.
    """
    told = _told(generation)
    if "eos_token_id" in generation:
        eos_field = f"{_FILE}: eos_token_id"
    else:
        told |= _told({"eos_token_id": _end_ids(eos, eos_field)})
    file = _read(told)
    ends = file.eos_token_id if isinstance(file.eos_token_id, tuple) else (file.eos_token_id,)
    biases = _biases(file)
    heeded = SamplingParams(
        **_draws(file),
        repetition_penalty=file.repetition_penalty,
        max_tokens=file.max_new_tokens,
        # Where nothing ends a text, nothing is too early.
        min_tokens=file.min_new_tokens if ends else 0,
        logit_bias=biases,
        stop=(file.stop_strings,) if isinstance(file.stop_strings, str) else file.stop_strings,
        stop_token_ids=ends,
        # Others are not said anyway.
        suppress_token_ids=tuple(token for token in file.suppress_tokens if 0 <= token < vocab_size),
        # An end may be named among them, and stays one.
        bad_words_ids=tuple(word for word in file.bad_words_ids if word not in {(end,) for end in ends}),
    )
    published = heeded.with_defaults(GREEDY)
    _check(published, ends_field=eos_field)
    words = (token for word in published.bad_words_ids or () for token in word)
    for field, ids in (
        (eos_field, ends),
        (f"{_FILE}: bad_words_ids", words),
        (f"{_FILE}: sequence_bias", biases or ()),
    ):
        for token in ids:
            if token >= vocab_size:
                problem = f"{token} is not in the vocabulary of {vocab_size}"
                raise CheckpointError(field, problem, "use the file as published")
    _warn(told, _unsaid(file), file.do_sample)
    return published


def code_sampling_defaults(generation: Mapping[str, Any], prefix: str) -> SamplingParams:
    """How the codes of a frame after the first are drawn, and nothing else: of the fields whose names begin with `prefix`.

    Logs and raises what `sampling_defaults` does.
    """
    own = {name.removeprefix(prefix): value for name, value in generation.items() if name.startswith(prefix)}
    told = _told(own)
    file = _read(told, prefix)
    draws = SamplingParams(**_draws(file))
    _check(draws, prefix)
    unsaid = {"min_p": 0, "repetition_penalty": 1, "suppress_tokens": [], "bad_words_ids": [], "sequence_bias": []}
    _warn(told, unsaid, file.do_sample, prefix)
    return SamplingParams(code_temperature=draws.temperature, code_top_k=draws.top_k, code_top_p=draws.top_p)


def _end_ids(ids: object, field: str) -> int | tuple[int, ...] | None:
    try:
        read: int | tuple[int, ...] | None = msgspec.convert(ids, _EndIds)
        return read
    except msgspec.ValidationError as error:
        raise CheckpointError(field, str(error).partition(" - at ")[0], _RESTORE) from error


def _told(generation: Mapping[str, Any]) -> dict[str, Any]:
    """A field that is null is one that is not there."""
    return {name: value for name, value in generation.items() if value is not None}


def _read(told: Mapping[str, Any], prefix: str = "") -> _Generation:
    try:
        return msgspec.convert(told, _Generation)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise CheckpointError(f"{_FILE}: {prefix}{place.rstrip('`')}", problem, _RESTORE) from error


def _draws(file: _Generation) -> dict[str, Any]:
    if not file.do_sample:
        return {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return {"temperature": file.temperature, "top_k": file.top_k, "top_p": file.top_p, "min_p": file.min_p}


def _biases(file: _Generation) -> dict[int, float] | None:
    """None where they are no biases of single ids. transformers adds them before the repetition penalty, and omni after it."""
    if file.repetition_penalty != 1 or any(len(ids) != 1 or abs(bias) > 100 for ids, bias in file.sequence_bias):
        return None if file.sequence_bias else {}
    return {ids[0]: bias for ids, bias in file.sequence_bias}


def _unsaid(file: _Generation) -> dict[str, object]:
    """Of what is heeded, that which cannot be said here: lengths of prompt and text together count if nothing else does."""
    unsaid: dict[str, object] = {"sequence_bias": []} if _biases(file) is None else {}
    if file.max_new_tokens is None:
        unsaid["max_length"] = 20  # which transformers takes for its own default
    if not file.min_new_tokens and file.eos_token_id != ():
        unsaid["min_length"] = 0
    return unsaid


def _check(published: SamplingParams, prefix: str = "", ends_field: str = "") -> None:
    """ends_field: where the end ids stand."""
    try:
        published.check("")
    except InputError as error:
        name = error.field.removeprefix(".")
        field = ends_field if name == "stop_token_ids" else f"{_FILE}: {prefix}{_NAMES.get(name, name)}"
        raise CheckpointError(field, error.problem, _RESTORE) from error


def _warn(told: Mapping[str, Any], unsaid: Mapping[str, object], sampled: bool, prefix: str = "") -> None:
    without = {**_EDITS, **(_DRAWS if sampled else {}), **unsaid}
    fields = [f"{prefix}{name} = {told[name]}" for name, off in without.items() if told.get(name, off) != off]
    if fields:
        _log.warning("%s: not supported, so results differ from transformers': %s", _FILE, ", ".join(fields))
