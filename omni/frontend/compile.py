"""Compiles sampling parameters about text: stop strings, bad words and structured outputs become ids, and rules for the host."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni.errors import ConfigError, InputError, check_unicode
from omni.frontend.host_rules import HostRulesBuilder
from omni.frontend.stops import StopTexts, stopped_text
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline
from omni.sampling import HostRules, SamplingParams, TextRules

_MOST_BYTES = 4096
"""Maximum size of all stop strings, and of all bad words."""
_MOST_BAD_WORDS = 128
"""Each is two sequences of ids at a stage: with a leading space, and without."""
_TEXT_PARAMETERS = ("stop", "bad_words", "structured", "logprobs", "prompt_logprobs")
"""Parameters of the stage that writes the text only."""


@dataclass(frozen=True, slots=True)
class CompiledSampling:
    """sampling: by stage, with ids where there were texts. rules: by stage, about the text."""

    sampling: Mapping[str, SamplingParams]
    rules: Mapping[str, TextRules] = field(default_factory=dict)
    _vocabulary: Vocabulary | None = None

    def after_stop(self, held: Sequence[int]) -> str:
        """The text from the stop string on. held: the tokens that it ends in."""
        if self._vocabulary is None or not held:
            return ""
        stops = [text for rules in self.rules.values() for text in rules.stop]
        if not stops:
            return ""
        tail = stopped_text(StopTexts(stops), [self._vocabulary.written(token) for token in held])
        return tail.decode(errors="replace")


class SamplingCompiler:
    """Made before serving: with a large vocabulary it holds the interpreter lock for a while. stage: the one that writes the text,
    None without one. vocabulary: of that stage, None if unknown; then only ids can be used. Raises ConfigError if another stage has
    defaults about text."""

    def __init__(self, pipeline: Pipeline, stage: str | None, vocabulary: Vocabulary | None) -> None:
        self._stage = stage
        self._defaults = {name: _defaults(pipeline, name) for name in pipeline.sampling_stages}
        self._vocabulary = vocabulary
        self._builder = HostRulesBuilder(vocabulary) if vocabulary is not None else None
        for name, params in self._defaults.items():
            try:
                self.check({name: params}, {name: f"{name}.sampling"})
                self.check_grammars({name: params}, {name: f"{name}.sampling"})
            except InputError as error:
                raise ConfigError(error.field, error.problem, error.remedy) from error

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """The quick checks, at submission. fields: by stage, the name of its parameters in errors. Raises InputError for parameters
        about text at a stage that writes none or whose vocabulary is unknown, for invalid Unicode, and for too many texts."""
        for stage, params in sampling.items():
            given = msgspec.structs.asdict(params)
            for name in _TEXT_PARAMETERS:
                if given[name] in (None, ()):
                    continue
                if stage != self._stage:
                    problem = f"is about the text, which stage {stage!r} does not write"
                    remedy = f"give it for stage {self._stage!r}" if self._stage is not None else "leave it out"
                    raise InputError(f"{fields[stage]}.{name}", problem, remedy)
                if self._vocabulary is None and "logprobs" not in name:
                    problem = "needs the text of each id, which is unknown for this checkpoint's tokenizer"
                    raise InputError(f"{fields[stage]}.{name}", problem, "use ids: stop_token_ids or bad_words_ids")
            words = params.bad_words or ()
            if len(words) > _MOST_BAD_WORDS:
                remedy = f"use at most {_MOST_BAD_WORDS}"
                raise InputError(f"{fields[stage]}.bad_words", f"are {len(words)} words", remedy)
            _check_bytes(params.stop or (), f"{fields[stage]}.stop", "texts")
            _check_bytes(words, f"{fields[stage]}.bad_words", "words")

    def check_grammars(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """May take seconds the first time. `sampling` has passed `check`. Raises InputError for grammars that do not compile."""
        for stage, params in sampling.items():
            if params.structured is not None and self._builder is not None:
                self._builder.grammars.compile(params.structured, f"{fields[stage]}.structured")

    def in_ids(self, sampling: Mapping[str, SamplingParams]) -> Mapping[str, SamplingParams]:
        """The parameters for stages: bad words as ids, and without those that become rules."""
        params = sampling.get(self._stage) if self._stage is not None else None
        if self._stage is None or params is None:
            return sampling
        texts: dict[str, Any] = {"stop": (), "bad_words": (), "structured": None}
        if params.bad_words and self._vocabulary is not None:
            # Tokenizers encode the leading space with the word: its ids at the beginning of a text, and after another word.
            spaced = [text for word in params.bad_words for text in (word, f" {word}")]
            words = [ids for text in spaced if (ids := tuple(self._vocabulary.encode(text)))]
            texts["bad_words_ids"] = tuple(dict.fromkeys((*(params.bad_words_ids or ()), *words)))
        return {**sampling, self._stage: msgspec.structs.replace(params, **texts)}

    def in_texts(
        self, error: InputError, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]
    ) -> InputError:
        """A stage's error about ids that were texts, as an error about the texts."""
        if self._stage is None:
            return error
        asked, field = sampling.get(self._stage), fields.get(self._stage, "")
        if asked is None or asked.bad_words_ids or error.field != f"{field}.bad_words_ids":
            return error
        return InputError(f"{field}.bad_words", f"as ids, {error.problem}", error.remedy, error.operator_remedy)

    def compile(
        self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str], samples: int = 1
    ) -> CompiledSampling:
        """May take seconds, for a grammar. `sampling` has passed `check`. samples: if there are several, stages without a seed get
        one here, so that samples differ by their index only. Raises InputError for grammars that do not compile."""
        stage, vocabulary = self._stage, self._vocabulary
        if samples > 1:
            sampling = self._seeded(sampling)
        if stage is None or vocabulary is None or self._builder is None:
            return CompiledSampling(sampling)
        defaults = self._defaults.get(stage, SamplingParams())
        asked = sampling.get(stage, SamplingParams())
        params = asked.with_defaults(defaults)
        if not (params.stop or params.bad_words or params.structured):
            return CompiledSampling(sampling)
        name = f"{fields.get(stage, f'{stage}.sampling')}.structured"
        if params.structured is not None:
            self._builder.grammars.compile(params.structured, name)
        words = {"bad_words": params.bad_words, "bad_words_ids": params.bad_words_ids}
        in_ids = self.in_ids({**sampling, stage: msgspec.structs.replace(asked, **words)})
        own = defaults.stop_token_ids if not params.ignore_eos else ()
        rules = TextRules(
            stop=tuple(params.stop or ()),
            min_tokens=params.min_tokens or 0,
            structured=params.structured,
            ends=tuple(dict.fromkeys((*(own or ()), *(asked.stop_token_ids or ())))),
            field=name,
        )
        return CompiledSampling(in_ids, {stage: rules} if rules.stop or rules.structured else {}, vocabulary)

    def host_rules(self, compiled: CompiledSampling) -> Mapping[str, HostRules]:
        """Host rules by stage, for one sample, since rules have state. May take long. Raises InputError as `compile`."""
        if self._builder is None:
            return {}
        return {name: self._builder.build(rules) for name, rules in compiled.rules.items()}

    def _seeded(self, sampling: Mapping[str, SamplingParams]) -> Mapping[str, SamplingParams]:
        asked = {name: sampling.get(name, SamplingParams()) for name in self._defaults}
        return {
            name: msgspec.structs.replace(params, seed=secrets.randbits(63))
            if params.with_defaults(self._defaults[name]).seed is None
            else params
            for name, params in asked.items()
        }


def _defaults(pipeline: Pipeline, stage: str) -> SamplingParams:
    defaults = msgspec.structs.asdict(pipeline.stage(stage).options)["sampling"]
    assert isinstance(defaults, SamplingParams)
    return defaults


def _check_bytes(texts: Sequence[str], field: str, what: str) -> None:
    if sum(len(check_unicode(text, field)) for text in texts) > _MOST_BYTES:
        raise InputError(field, f"are more than {_MOST_BYTES} bytes in all", f"give fewer or shorter {what}")
