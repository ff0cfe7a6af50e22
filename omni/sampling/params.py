"""How tokens are chosen at one stage."""

import math
from collections.abc import Mapping

import msgspec

from omni.errors import InputError, check_unicode, quoted
from omni.utils.named_fields import NamedFields


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=NamedFields):
    """The form that a text must have; exactly one of these.

    json: a JSON schema, as a string or as a dict. regex: a regular expression that the whole text matches. choice: the texts to
    choose from. grammar: an EBNF grammar, whose start symbol is `root` or `start`.
    """

    json: str | dict[str, object] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def check(self, field: str) -> None:
        """Raises InputError unless exactly one form is given. Whether it compiles is found out later."""
        given = [name for name, value in msgspec.structs.asdict(self).items() if value is not None]
        if len(given) != 1:
            problem = f"gives {', '.join(given)}" if given else "gives no form"
            raise InputError(field, problem, "give exactly one of json, regex, choice and grammar")
        for text in (self.json, self.regex, self.grammar, *(self.choice or ())):
            if isinstance(text, str):
                check_unicode(text, f"{field}.{given[0]}")
        if self.choice is not None and not all(self.choice):
            raise InputError(f"{field}.choice", "has an empty text", "remove it")
        if self.choice == ():
            raise InputError(f"{field}.choice", "is empty", "name at least one text")


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=NamedFields):
    """Sampling at one autoregressive stage. A field left None takes the stage's default.

    Applied in this order: repetition penalty, frequency and presence penalty, logit bias, what may not be said (suppressed and not
    allowed ids, bad words, ends before `min_tokens`, what a structure rules out), processors; then a draw by temperature, top-k,
    top-p and min-p. What transformers has of these is as it does it.

    max_tokens: tokens to generate at most, at least 1. min_tokens: before so many, nothing ends the text.
    temperature: 0 is greedy; otherwise 0.001 to 100.
    top_k: keep the k most likely; 0 keeps all, and so does -1, which becomes 0.
    top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1]; 1 keeps all.
    min_p: keep tokens at least this times as likely as the likeliest, in [0, 1]; 0 keeps all.
    code_temperature, code_top_k, code_top_p: the same of a codec frame's codes after the first. The first is the token, and all
        else is about tokens. If temperature is 0 they are greedy too, unless code_temperature is asked for.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen so far, in the prompt too; 1 is none.
    frequency_penalty, presence_penalty: taken from the logits of generated tokens, the first for each time; -2 to 2, 0 is none.
    logit_bias: added to the logits of these ids; -100 to 100.
    seed: makes a request's tokens reproducible whatever else runs; None draws one.
    stop: texts that end generation, or one text, which becomes a tuple of it; what is given ends before them.
    stop_token_ids: ids that end generation, in addition to the stage's own. ignore_eos: the stage's own do not end it.
    suppress_token_ids: ids that are never generated, in addition to the stage's own. allowed_token_ids: the only ids that are.
    bad_words: texts that are never generated, or one text. bad_words_ids: the same as sequences of ids.
    logprobs: log-probabilities of each generated token and of the so many likeliest, 0 to 20, as the model gives them, before any
        of the above. prompt_logprobs: the same of the prompt's tokens.
    structured: the form that the text must have.
    processors: logits processors to apply, by name, each with its arguments.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    code_temperature: float | None = None
    code_top_k: int | None = None
    code_top_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    suppress_token_ids: tuple[int, ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: str | tuple[str, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured: StructuredOutput | None = None
    processors: Mapping[str, Mapping[str, object]] | None = None

    def __post_init__(self) -> None:
        # As other libraries write them; read everywhere else in one way.
        for name, value in (("stop", self.stop), ("bad_words", self.bad_words)):
            if isinstance(value, str):
                msgspec.structs.force_setattr(self, name, (value,))
        for name, count in (("top_k", self.top_k), ("code_top_k", self.code_top_k)):
            if count == -1:
                msgspec.structs.force_setattr(self, name, 0)

    def with_defaults(self, defaults: "SamplingParams") -> "SamplingParams":
        """These parameters, with `defaults` where a field is None."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return msgspec.structs.replace(defaults, **given)

    def check(self, field: str) -> None:
        """Raises InputError naming `field` and the parameter that is out of range, or that contradicts another."""
        for name, valid, remedy in (
            ("max_tokens", _within(self.max_tokens, 1, 2**31 - 1), "use at least 1, below 2**31"),
            ("min_tokens", _within(self.min_tokens, 0, 2**31 - 1), "use 0 or more, below 2**31"),
            ("temperature", _temperature(self.temperature), "use 0 (greedy), or 0.001 to 100"),
            ("top_k", _within(self.top_k, 0, 2**31 - 1), "use 0 or -1 (off), or more, below 2**31"),
            ("top_p", _share(self.top_p), "use a number above 0, up to 1 (off)"),
            ("code_temperature", _temperature(self.code_temperature), "use 0 (greedy), or 0.001 to 100"),
            ("code_top_k", _within(self.code_top_k, 0, 2**31 - 1), "use 0 or -1 (off), or more, below 2**31"),
            ("code_top_p", _share(self.code_top_p), "use a number above 0, up to 1 (off)"),
            ("min_p", _within(self.min_p, 0, 1), "use 0 (off) to 1"),
            ("repetition_penalty", _within(self.repetition_penalty, 0.01, 100), "use 0.01 to 100; 1 is none"),
            ("frequency_penalty", _within(self.frequency_penalty, -2, 2), "use -2 to 2; 0 is none"),
            ("presence_penalty", _within(self.presence_penalty, -2, 2), "use -2 to 2; 0 is none"),
            ("logit_bias", _biases(self.logit_bias), "give ids of the vocabulary -100 to 100 each"),
            ("seed", self.seed is None or 0 <= self.seed < 2**63, "use 0 to 2**63 - 1"),
            ("stop", _texts(self.stop), "give texts that are not empty"),
            ("stop_token_ids", _ids(self.stop_token_ids), "use ids of the vocabulary"),
            ("suppress_token_ids", _ids(self.suppress_token_ids), "use ids of the vocabulary"),
            (
                "allowed_token_ids",
                self.allowed_token_ids != () and _ids(self.allowed_token_ids),
                "name at least one id",
            ),
            ("bad_words", _texts(self.bad_words), "give texts that are not empty"),
            ("bad_words_ids", all(w and _ids(w) for w in self.bad_words_ids or ()), "give ids of the vocabulary"),
            ("logprobs", _within(self.logprobs, 0, MAX_LOGPROBS), f"use 0 to {MAX_LOGPROBS}"),
            ("prompt_logprobs", _within(self.prompt_logprobs, 0, MAX_LOGPROBS), f"use 0 to {MAX_LOGPROBS}"),
        ):
            if not valid:
                value = msgspec.structs.asdict(self)[name]
                raise InputError(f"{field}.{name}", f"{quoted(value)} is out of range", remedy)
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


MAX_LOGPROBS = 20
"""The likeliest ids of which log-probabilities are given, at most."""


def _within(value: float | None, low: float, high: float) -> bool:
    return value is None or low <= value <= high


def _temperature(value: float | None) -> bool:
    # Below a thousandth, float32 logits over the temperature overflow where greedy is meant.
    return value == 0 or _within(value, 0.001, 100)


def _share(value: float | None) -> bool:
    return value is None or 0 < value <= 1


def _ids(ids: tuple[int, ...] | None) -> bool:
    return ids is None or all(0 <= i < 2**31 for i in ids)


def _biases(biases: Mapping[int, float] | None) -> bool:
    return biases is None or all(0 <= i < 2**31 and math.isfinite(b) and abs(b) <= 100 for i, b in biases.items())


def _texts(texts: str | tuple[str, ...] | None) -> bool:
    return texts is None or all(texts)
