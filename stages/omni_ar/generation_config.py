"""Sampling defaults from a checkpoint's generation_config.json, with transformers' meaning. Torch-free, as options are."""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, get_args, get_type_hints

import msgspec

from omni.errors import CheckpointError, InputError
from omni.sampling import GREEDY, PARAMETERS, SamplingParams
from omni.utils.log import safe_logger

_log = safe_logger(__name__)

_FILE = "generation_config.json"
_RESTORE = "correct it or download it again"

_CONFIG_FIELDS = {
    name: parameter.config_field for name, parameter in PARAMETERS.items() if parameter.config_field is not None
}
_DRAWS = tuple(name for name, field in _CONFIG_FIELDS.items() if field.draws)
_CODE_DRAWS = tuple(name for name in _DRAWS if f"code_{name}" in PARAMETERS)

_UNSUPPORTED_DRAWS: Mapping[str, object] = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": None}
_UNSUPPORTED: Mapping[str, object] = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "force_words_ids": [],
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "penalty_alpha"), 0),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beams"), 1),
    **dict.fromkeys(("dola_layers", "exponential_decay_length_penalty", "max_time", "watermarking_config"), None),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), None),
    "token_healing": False,
}
"""Unsupported fields of generation_config.json and their neutral values; the first ones have effect only with `do_sample`."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """Supported fields of the file without a sampling parameter of their own, with transformers' defaults."""

    do_sample: bool = False
    max_length: int | None = None
    min_length: int = 0
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()


def _types() -> dict[str, Any]:
    """Types of the fields of `_CONFIG_FIELDS` in the file, whose null fields have been dropped."""
    hints = get_type_hints(SamplingParams)
    types = {name: reduce(or_, (t for t in get_args(hints[name]) if t is not type(None))) for name in _CONFIG_FIELDS}
    return types | {"stop_token_ids": int | types["stop_token_ids"]}


_Generation: Any = msgspec.defstruct(
    "_Generation",
    [(_CONFIG_FIELDS[name].name, file_type, _CONFIG_FIELDS[name].default) for name, file_type in _types().items()],
    bases=(_File,),
    frozen=True,
    kw_only=True,
)
_END_IDS: Any = int | tuple[int, ...] | None


def sampling_defaults(
    generation: Mapping[str, Any], eos: object, vocab_size: int, *, eos_field: str = "config.json: eos_token_id"
) -> SamplingParams:
    """Returns a checkpoint's defaults. eos: the end ids if generation_config.json has none, from the field `eos_field`: an id, a
    list of ids, or None.

    Logs a warning that names unsupported fields. Raises CheckpointError for values that are out of range, and for ids of an end or
    of a bad word outside the vocabulary.
    """
    given = _given(generation)
    if "eos_token_id" in generation:
        eos_field = f"{_FILE}: eos_token_id"
    else:
        given |= _given({"eos_token_id": _converted(eos, _END_IDS, eos_field)})
    file: _File = _converted(given, _Generation, f"{_FILE}: ")
    values = _parameters(file)
    ends = values["stop_token_ids"]
    ends = ends if isinstance(ends, tuple) else (ends,)
    biases = _biases(file, values["repetition_penalty"])
    values |= {
        # Without end ids, a minimum length has no effect.
        "min_tokens": values["min_tokens"] if ends else 0,
        "logit_bias": biases,
        "stop_token_ids": ends,
        # Ids outside the vocabulary are never generated.
        "suppress_token_ids": tuple(token for token in values["suppress_token_ids"] if 0 <= token < vocab_size),
        # An end id among the bad words stays an end id.
        "bad_words_ids": tuple(word for word in values["bad_words_ids"] if word not in {(end,) for end in ends}),
    }
    defaults = SamplingParams(**values).with_defaults(GREEDY)
    _check(defaults, ends_field=eos_field)
    words = (token for word in defaults.bad_words_ids or () for token in word)
    for field, ids in (
        (eos_field, ends),
        (f"{_FILE}: bad_words_ids", words),
        (f"{_FILE}: sequence_bias", biases or ()),
    ):
        for token in ids:
            if token >= vocab_size:
                problem = f"{token} is not in the vocabulary of {vocab_size}"
                raise CheckpointError(field, problem, "use the file as published")
    unsupported: dict[str, object] = {"sequence_bias": []} if biases is None else {}
    # `max_length` counts prompt and text together; it applies only without `max_new_tokens`.
    if values["max_tokens"] is None:
        unsupported["max_length"] = 20  # transformers interprets 20 as its own default
    if not values["min_tokens"] and ends:
        unsupported["min_length"] = 0
    _warn(given, unsupported, file.do_sample)
    return defaults


def code_sampling_defaults(generation: Mapping[str, Any], prefix: str) -> SamplingParams:
    """Defaults for the codes of a frame after the first, from the fields whose names begin with `prefix`. Logs and raises as
    `sampling_defaults` does."""
    given = _given({name.removeprefix(prefix): v for name, v in generation.items() if name.startswith(prefix)})
    file: _File = _converted(given, _Generation, f"{_FILE}: {prefix}")
    values = _parameters(file)
    _check(SamplingParams(**{name: values[name] for name in _DRAWS}), prefix)
    unsupported = {_CONFIG_FIELDS[name].name: PARAMETERS[name].off for name in _DRAWS if name not in _CODE_DRAWS}
    unsupported |= {"repetition_penalty": 1, "suppress_tokens": [], "bad_words_ids": [], "sequence_bias": []}
    _warn(given, unsupported, file.do_sample, prefix)
    return SamplingParams(**{f"code_{name}": values[name] for name in _CODE_DRAWS})


def _given(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that are null."""
    return {name: value for name, value in generation.items() if value is not None}


def _converted(given: object, kind: Any, field: str) -> Any:
    """field: name of the value in errors, in front of the name of a field in it."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise CheckpointError(f"{field}{place.rstrip('`').lstrip('.')}", problem, _RESTORE) from error


def _parameters(file: _File) -> dict[str, Any]:
    """Values of the published parameters; without `do_sample`, the parameters of draws are off."""
    read = msgspec.structs.asdict(file)
    return {
        name: PARAMETERS[name].off if field.draws and not file.do_sample else read[field.name]
        for name, field in _CONFIG_FIELDS.items()
    }


def _biases(file: _File, repetition_penalty: float) -> dict[int, float] | None:
    """The biases by id; None if `logit_bias` cannot. transformers adds them before the repetition penalty, omni after it."""
    if repetition_penalty != 1 or any(len(ids) != 1 or abs(bias) > 100 for ids, bias in file.sequence_bias):
        return None if file.sequence_bias else {}
    return {ids[0]: bias for ids, bias in file.sequence_bias}


def _check(defaults: SamplingParams, prefix: str = "", ends_field: str = "") -> None:
    """ends_field: name of the field that holds the end ids."""
    try:
        defaults.check("")
    except InputError as error:
        name = error.field.removeprefix(".")
        config_name = _CONFIG_FIELDS[name].name if name in _CONFIG_FIELDS else name
        field = ends_field if name == "stop_token_ids" else f"{_FILE}: {prefix}{config_name}"
        raise CheckpointError(field, error.problem, _RESTORE) from error


def _warn(given: Mapping[str, Any], unsupported: Mapping[str, object], sampled: bool, prefix: str = "") -> None:
    neutral = {**_UNSUPPORTED, **(_UNSUPPORTED_DRAWS if sampled else {}), **unsupported}
    fields = [f"{prefix}{name} = {given[name]}" for name, value in neutral.items() if given.get(name, value) != value]
    if fields:
        _log.warning("%s: not supported, so results differ from transformers': %s", _FILE, ", ".join(fields))
