"""Sampling parameters: each is declared once, as a field of `SamplingParams`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
from msgspec import StructMeta

from omni.errors import InputError, check_unicode, quoted, shortened


class NamedFields(StructMeta):
    """The metaclass of such structs. msgspec's own error for an unknown name is a TypeError without a suggestion."""

    # Type checkers use msgspec's own signature.
    if not TYPE_CHECKING:

        def __call__(cls, *values: Any, **fields: Any) -> Any:
            """Raises InputError for unknown names and positional values."""
            known = cls.__struct_fields__
            if values:
                problem = f"gets {len(values)} values without names"
                raise InputError(cls.__name__, problem, f"name fields, such as {cls.__name__}({known[0]}=...)")
            for name in fields:
                if name not in known:
                    near = get_close_matches(name, known, 1)
                    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
                    raise InputError(f"{cls.__name__}.{shortened(name)}", "is not a field", remedy)
            return super().__call__(**fields)


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=NamedFields):
    """The format of the text: exactly one of these.

    json: a JSON schema, as a string or as a dict. regex: a regular expression that the whole text matches. choice: the texts to
    choose from. grammar: an EBNF grammar, whose start symbol is `root` or `start`.
    """

    json: str | dict[str, object] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def check(self, field: str) -> None:
        """Raises InputError unless exactly one format is given. The front end compiles it later."""
        given = [name for name, value in msgspec.structs.asdict(self).items() if value is not None]
        if len(given) != 1:
            problem = f"gives {', '.join(given)}" if given else "gives no format"
            raise InputError(field, problem, "give exactly one of json, regex, choice and grammar")
        for text in (self.json, self.regex, self.grammar, *(self.choice or ())):
            if isinstance(text, str):
                check_unicode(text, f"{field}.{given[0]}")
        if self.choice is not None and not all(self.choice):
            raise InputError(f"{field}.choice", "has an empty text", "remove it")
        if self.choice == ():
            raise InputError(f"{field}.choice", "is empty", "name at least one text")


MAX_LOGPROBS = 20
"""Maximum number of most likely ids with log-probabilities."""

_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GenerationConfigField:
    """The field of generation_config.json that sets a parameter. default: transformers' value if the file has none. draws: it has
    effect only with `do_sample`."""

    name: str
    default: object
    draws: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """Declaration of a sampling parameter: metadata of its field in `SamplingParams`.

    valid: whether a value is in range. remedy: of the error for one that is not. off: the value without effect, and the fallback
    default unless `default` is given. config_field: see `GenerationConfigField`. of_codes: it applies to a codec frame's codes
    after the first. The device storage of a parameter is declared by stage kinds.
    """

    valid: Callable[[Any], bool] = lambda value: True
    remedy: str = ""
    off: object = None
    default: object = None
    config_field: GenerationConfigField | None = None
    of_codes: bool = False


def _within(low: float, high: float) -> Callable[[float], bool]:
    return lambda value: low <= value <= high


def _ids(ids: tuple[int, ...]) -> bool:
    return all(0 <= i <= _INT for i in ids)


def _biases(biases: Mapping[int, float]) -> bool:
    return all(0 <= i <= _INT and math.isfinite(b) and abs(b) <= 100 for i, b in biases.items())


_MAX_TOKENS = Parameter(
    _within(1, _INT),
    "use at least 1, below 2**31",
    default=1024,
    config_field=GenerationConfigField("max_new_tokens", None),
)
_MIN_TOKENS = Parameter(
    _within(0, _INT), "use 0 or more, below 2**31", off=0, config_field=GenerationConfigField("min_new_tokens", 0)
)
# Below a thousandth, float32 logits over the temperature overflow where greedy is meant.
_TEMPERATURE = Parameter(lambda value: value == 0 or 0.001 <= value <= 100, "use 0 (greedy), or 0.001 to 100", off=0.0)
_TOP_K = Parameter(_within(0, _INT), "use 0 or -1 (off), or more, below 2**31", off=0)
_TOP_P = Parameter(lambda value: 0 < value <= 1, "use a number above 0, up to 1 (off)", off=1.0)
_MIN_P = Parameter(
    _within(0, 1), "use 0 (off) to 1", off=0.0, config_field=GenerationConfigField("min_p", 0.0, draws=True)
)
_REPETITION = Parameter(
    _within(0.01, 100),
    "use 0.01 to 100; 1 is none",
    off=1.0,
    config_field=GenerationConfigField("repetition_penalty", 1.0),
)
_TEXTS = Parameter(all, "give texts that are not empty", off=())
_IDS = Parameter(_ids, "use ids of the vocabulary", off=())
_ALLOWED = Parameter(lambda ids: ids != () and _ids(ids), "name at least one id")
_ID_SEQUENCES = Parameter(
    lambda words: all(word and _ids(word) for word in words),
    "give ids of the vocabulary",
    off=(),
    config_field=GenerationConfigField("bad_words_ids", ()),
)
_LOGPROBS = Parameter(_within(0, MAX_LOGPROBS), f"use 0 to {MAX_LOGPROBS}")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=NamedFields):
    """Sampling at one autoregressive stage. A field left None takes the stage's default.

    Order: repetition penalty, frequency and presence penalty, logit bias, masks (suppressed and not allowed ids, bad words, ends
    before `min_tokens`, structured output), processors; then a draw by temperature, top-n-sigma, top-k, top-p and min-p.
    Parameters that transformers has too behave as there.
    """

    max_tokens: Annotated[int | None, _MAX_TOKENS] = None
    """Maximum number of generated tokens, at least 1."""

    min_tokens: Annotated[int | None, _MIN_TOKENS] = None
    """Stop conditions have no effect before this number of tokens."""

    temperature: Annotated[
        float | None, replace(_TEMPERATURE, config_field=GenerationConfigField("temperature", 1.0, draws=True))
    ] = None
    """0 is greedy; otherwise 0.001 to 100."""

    top_k: Annotated[int | None, replace(_TOP_K, config_field=GenerationConfigField("top_k", 50, draws=True))] = None
    """Keeps the k most likely ids. 0 keeps all, and so does -1, which becomes 0."""

    top_p: Annotated[float | None, replace(_TOP_P, config_field=GenerationConfigField("top_p", 1.0, draws=True))] = None
    """Keeps the smallest set of ids whose probability reaches this, in (0, 1]. 1 keeps all."""

    min_p: Annotated[float | None, _MIN_P] = None
    """Keeps ids at least this times as likely as the most likely one, in [0, 1]. 0 keeps all."""

    top_n_sigma: Annotated[float | None, Parameter(_within(0, 100), "use 0 (off) to 100", off=0.0)] = None
    """Keeps ids whose logit is within this number of standard deviations of the largest, 0 to 100. 0 keeps all."""

    code_temperature: Annotated[float | None, replace(_TEMPERATURE, default=1.0, of_codes=True)] = None
    """Temperature of a codec frame's codes after the first. The first code is the token, to which the parameters without `code_`
    apply. A request without this parameter gets 0 if its `temperature` is 0."""

    code_top_k: Annotated[int | None, replace(_TOP_K, of_codes=True)] = None
    """`top_k` of these codes."""

    code_top_p: Annotated[float | None, replace(_TOP_P, of_codes=True)] = None
    """`top_p` of these codes."""

    repetition_penalty: Annotated[float | None, _REPETITION] = None
    """Divides positive and multiplies negative logits of ids in the prompt or generated. 1 is off."""

    frequency_penalty: Annotated[float | None, Parameter(_within(-2, 2), "use -2 to 2; 0 is none", off=0.0)] = None
    """Subtracted from the logit of a generated id once for each time; -2 to 2, 0 is off."""

    presence_penalty: Annotated[float | None, Parameter(_within(-2, 2), "use -2 to 2; 0 is none", off=0.0)] = None
    """Subtracted once from the logit of a generated id; -2 to 2, 0 is off."""

    logit_bias: Annotated[
        Mapping[int, float] | None, Parameter(_biases, "give ids of the vocabulary -100 to 100 each", off={})
    ] = None
    """Added to the logits of these ids; -100 to 100."""

    seed: Annotated[int | None, Parameter(lambda seed: 0 <= seed < 2**63, "use 0 to 2**63 - 1")] = None
    """Makes the request's tokens reproducible beside any other requests. None draws one."""

    stop: Annotated[
        str | tuple[str, ...] | None, replace(_TEXTS, config_field=GenerationConfigField("stop_strings", ()))
    ] = None
    """Texts that end generation, or one text, which becomes a tuple of it. The output ends before them."""

    stop_token_ids: Annotated[
        tuple[int, ...] | None, replace(_IDS, config_field=GenerationConfigField("eos_token_id", ()))
    ] = None
    """Ids that end generation, in addition to the stage's own."""

    ignore_eos: Annotated[bool | None, Parameter(off=False)] = None
    """The stage's own stop ids do not end generation."""

    suppress_token_ids: Annotated[
        tuple[int, ...] | None, replace(_IDS, config_field=GenerationConfigField("suppress_tokens", ()))
    ] = None
    """Ids that are never generated, in addition to the stage's own."""

    allowed_token_ids: Annotated[tuple[int, ...] | None, _ALLOWED] = None
    """The only ids that are generated."""

    bad_words: Annotated[str | tuple[str, ...] | None, _TEXTS] = None
    """Texts that are never generated, or one text."""

    bad_words_ids: Annotated[tuple[tuple[int, ...], ...] | None, _ID_SEQUENCES] = None
    """Sequences of ids that are never generated."""

    logprobs: Annotated[int | None, _LOGPROBS] = None
    """Log-probabilities of each generated token and of this number of most likely ids, 0 to 20, from the model's own logits."""

    prompt_logprobs: Annotated[int | None, _LOGPROBS] = None
    """`logprobs` of the prompt's tokens."""

    structured: Annotated[StructuredOutput | None, Parameter()] = None
    """The format of the text."""

    processors: Annotated[Mapping[str, Mapping[str, object]] | None, Parameter(off={})] = None
    """Logits processors to apply, by name, each with its arguments."""

    def __post_init__(self) -> None:
        # Accepts the forms of other libraries and normalizes them, so that the rest of the code reads one form.
        for name in ("stop", "bad_words"):
            if isinstance(value := getattr(self, name), str):
                msgspec.structs.force_setattr(self, name, (value,))
        for name in ("top_k", "code_top_k"):
            if getattr(self, name) == -1:
                msgspec.structs.force_setattr(self, name, 0)

    def with_defaults(self, defaults: "SamplingParams") -> "SamplingParams":
        """These parameters, with `defaults` where a field is None."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **given)

    def check(self, field: str) -> None:
        """Raises InputError naming `field` and the parameter that is out of range, or that contradicts another."""
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and not PARAMETERS[name].valid(value):
                raise InputError(f"{field}.{name}", f"{quoted(value)} is out of range", PARAMETERS[name].remedy)
        if self.structured is not None:
            self.structured.check(f"{field}.structured")
        self._check_together(field)

    def _check_together(self, field: str) -> None:
        if None not in (self.min_tokens, self.max_tokens) and self.min_tokens > self.max_tokens:  # type: ignore[operator]
            problem = f"{self.min_tokens} is more than max_tokens, {self.max_tokens}"
            raise InputError(f"{field}.min_tokens", problem, "lower it or raise max_tokens")
        if self.allowed_token_ids and set(self.allowed_token_ids) <= set(self.suppress_token_ids or ()):
            problem = "are all suppressed too"
            raise InputError(f"{field}.allowed_token_ids", problem, "allow an id that suppress_token_ids does not name")


PARAMETERS: Mapping[str, Parameter] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
}
"""The declaration of each field of `SamplingParams`."""

GREEDY = msgspec.convert(
    {name: p.off if p.default is None else p.default for name, p in PARAMETERS.items()}, SamplingParams
)
"""Defaults for checkpoints that state none. None disables a field, except `seed`, which is then drawn."""
