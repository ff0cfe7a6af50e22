"""Resolves a request's sampling parameters: requested values over the stage's defaults."""

import secrets

import msgspec

from omni.errors import ConfigError, InputError
from omni.sampling import GREEDY, SamplingParams
from omni_ar.kernels.sampling.state import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS, MAX_BIASED_IDS, MAX_STOP_IDS
from omni_ar.processors import ProcessorRegistry

Ids = tuple[int, ...]


def resolve_sampling(
    requested: SamplingParams, defaults: SamplingParams, stage: str, vocab_size: int
) -> SamplingParams:
    """The requested parameters over the stage's defaults, with every number set. Raises InputError naming the field. The front end
    handles `stop`, `structured` and texts in `bad_words`: the first two reach a stage as `HostRules`, the last as ids."""
    sampling = _resolved(requested, defaults)
    _check(sampling, f"sampling.{stage}", vocab_size)
    return sampling if sampling.seed is not None else msgspec.structs.replace(sampling, seed=secrets.randbits(63))


def check_sampling(
    requested: SamplingParams, defaults: SamplingParams, field: str, vocab_size: int, processors: ProcessorRegistry
) -> None:
    """Raises InputError, naming `field` and the parameter, for parameters that the stage can never apply; PluginError for a logits
    processor that could not be loaded. A pure function, for any thread."""
    sampling = _resolved(requested, defaults)
    _check(sampling, field, vocab_size)
    processors.check(sampling.processors, f"{field}.processors")


def check_defaults(defaults: SamplingParams, field: str, vocab_size: int) -> None:
    """Called at start. Raises ConfigError, naming `field` and the parameter, for defaults that the stage can never apply."""
    try:
        # Texts reach a stage as ids.
        _check(_resolved(SamplingParams(bad_words=()), defaults), field, vocab_size)
    except InputError as error:
        raise ConfigError(error.field, error.problem, error.remedy) from error


def _resolved(requested: SamplingParams, defaults: SamplingParams) -> SamplingParams:
    sampling = requested.with_defaults(defaults).with_defaults(GREEDY)
    greedy = sampling.temperature == 0 and requested.code_temperature is None
    least, most = sampling.min_tokens or 0, sampling.max_tokens
    return msgspec.structs.replace(
        sampling,
        # A greedy token makes the rest of its frame greedy.
        code_temperature=0.0 if greedy else sampling.code_temperature,
        # A requested maximum below the stage's default minimum lowers that minimum.
        min_tokens=min(least, most) if requested.min_tokens is None and most is not None else least,
        # A request adds ids to the stage's: it cannot allow an id for which the stage has no sound, and only
        # `ignore_eos` makes the stage continue past its own stop ids.
        stop_token_ids=_united(() if sampling.ignore_eos else defaults.stop_token_ids, requested.stop_token_ids),
        suppress_token_ids=_united(defaults.suppress_token_ids, requested.suppress_token_ids),
    )


def _united(defaults: Ids | None, requested: Ids | None) -> Ids:
    return tuple(dict.fromkeys((*(defaults or ()), *(requested or ()))))


def _check(sampling: SamplingParams, field: str, vocab_size: int) -> None:
    _check_ids(sampling, field, vocab_size)
    _check_counts(sampling, field)
    if sampling.bad_words:
        raise InputError(f"{field}.bad_words", "are texts, and this stage supports ids only", "use bad_words_ids")
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None and count > vocab_size:
            raise InputError(f"{field}.{name}", f"{count} is more than the vocabulary has", f"use at most {vocab_size}")
    least, most = sampling.min_tokens or 0, sampling.max_tokens
    if most is not None and least > most:
        problem = f"{least} is more than max_tokens, {most}"
        raise InputError(f"{field}.min_tokens", problem, "lower it or raise max_tokens")
    _check_choice(sampling, field, vocab_size)


def _check_ids(sampling: SamplingParams, field: str, vocab_size: int) -> None:
    for name, ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("suppress_token_ids", sampling.suppress_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("logit_bias", sampling.logit_bias),
        ("bad_words_ids", [i for word in sampling.bad_words_ids or () for i in word]),
    ):
        last = max(ids or (), default=-1)
        if last >= vocab_size:
            raise InputError(f"{field}.{name}", f"{last} is not in the vocabulary", f"use ids below {vocab_size}")


def _check_counts(sampling: SamplingParams, field: str) -> None:
    stops, biased = len(sampling.stop_token_ids or ()), len(sampling.logit_bias or ())
    words = sampling.bad_words_ids or ()
    longest = max(map(len, words), default=0)
    for name, count, most, problem, what in (
        ("stop_token_ids", stops, MAX_STOP_IDS, f"are {stops} ids, the stage's own included", "in all"),
        ("logit_bias", biased, MAX_BIASED_IDS, f"names {biased} ids", "ids"),
        ("bad_words_ids", len(words), MAX_BAD_WORDS, f"are {len(words)} words", "words"),
        ("bad_words_ids", longest, MAX_BAD_WORD_LENGTH, f"have a word of {longest} ids", "ids a word"),
    ):
        if count > most:
            raise InputError(f"{field}.{name}", problem, f"use at most {most} {what}")


def _check_choice(sampling: SamplingParams, field: str, vocab_size: int) -> None:
    """Raises InputError if no id is possible as the first token."""
    allowed, suppressed = sampling.allowed_token_ids, set(sampling.suppress_token_ids or ())
    left = set(allowed) - suppressed if allowed else None
    if left == set():
        raise InputError(f"{field}.allowed_token_ids", "are all suppressed too", "allow an id that is not suppressed")
    if len(suppressed) >= vocab_size:
        raise InputError(f"{field}.suppress_token_ids", "leave no possible token", "suppress fewer ids")
    suppressed.update(word[0] for word in sampling.bad_words_ids or () if len(word) == 1)
    if _none_left(left, suppressed, vocab_size):
        raise InputError(f"{field}.bad_words_ids", "leave no possible token", "remove words of one id")
    suppressed.update(sampling.stop_token_ids or () if sampling.min_tokens else ())
    if _none_left(left, suppressed, vocab_size):
        problem = f"{sampling.min_tokens} leaves no possible token before it but those that end the text"
        raise InputError(f"{field}.min_tokens", problem, "use 0 or rule fewer ids out")


def _none_left(allowed: set[int] | None, suppressed: set[int], vocab_size: int) -> bool:
    return len(suppressed) >= vocab_size if allowed is None else allowed <= suppressed
