"""From what a request says of its text to what a stage can do: ids, and rules for the host."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from omni.errors import ConfigError, InputError, check_unicode
from omni.frontend.grammar import Grammar, GrammarCompiler, GrammarMatcher
from omni.frontend.stops import StopStrings, StopTexts, stopped_text
from omni.frontend.vocabulary import Vocabulary
from omni.pipeline import Pipeline
from omni.sampling import HostRules, SamplingParams

_MOST_STOP_BYTES = 4096

_MOST_BAD_WORDS = 128
"""Each is told to a stage twice: with a space before it, and without."""

_MOST_BAD_WORD_BYTES = 4096

_OF_THE_TEXT = ("stop", "bad_words", "structured", "logprobs", "prompt_logprobs")
"""What has a meaning only where the text is written."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A grammar, the ids that end the text, and how to name it in errors."""

    grammar: Grammar
    ends: frozenset[int]
    field: str


@dataclass(frozen=True, slots=True)
class CompiledSampling:
    """sampling: by stage, with ids where there were texts."""

    sampling: Mapping[str, SamplingParams]
    _stage: str = ""
    _vocabulary: Vocabulary | None = None
    _stops: StopTexts | None = None
    _min_tokens: int = 0
    _form: _Form | None = None

    def rules(self) -> Mapping[str, HostRules]:
        """By stage, for one sample: rules have state. May take a while."""
        stops = None
        if self._stops is not None and self._vocabulary is not None:
            stops = StopStrings(self._stops, self._vocabulary, self._min_tokens)
        host_processors = (GrammarMatcher(self._form.grammar, self._form.ends, self._form.field),) if self._form else ()
        return {self._stage: HostRules(stops, host_processors)} if stops or host_processors else {}

    def after_stop(self, held: Sequence[int]) -> str:
        """The text of `held`, the tokens in which a stop string ended the text, from that string on."""
        if self._stops is None or self._vocabulary is None or not held:
            return ""
        tail = stopped_text(self._stops, [self._vocabulary.written(token) for token in held])
        return tail.decode(errors="replace")


class SamplingCompiler:
    """Made before anything is served: it holds the interpreter lock for a while where the vocabulary is large.

    stage: writes the text; None where none does. vocabulary: of that stage; None if it cannot be told, which leaves what is said in
    ids.
    Raises ConfigError if a stage that does not write the text has defaults that are about a text.
    """

    def __init__(self, pipeline: Pipeline, stage: str | None, vocabulary: Vocabulary | None) -> None:
        self._stage = stage
        self._defaults = {name: _defaults(pipeline, name) for name in pipeline.sampling_stages}
        self._vocabulary = vocabulary
        self._grammars = GrammarCompiler(vocabulary) if vocabulary is not None else None
        for name, params in self._defaults.items():
            try:
                self.check({name: params}, {name: f"{name}.sampling"})
                self.check_forms({name: params}, {name: f"{name}.sampling"})
            except InputError as error:
                raise ConfigError(error.field, error.problem, error.remedy) from error

    def check(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """At submission: what can be told at once. fields: by stage, how to name its parameters.

        Raises InputError for parameters about a text at a stage that writes none, and where a vocabulary is needed and none told;
        for texts that are no valid Unicode, and for too many of them.
        """
        for stage, params in sampling.items():
            given = msgspec.structs.asdict(params)
            for name in _OF_THE_TEXT:
                if given[name] in (None, ()):
                    continue
                if stage != self._stage:
                    problem = f"is about the text, which stage {stage!r} does not write"
                    remedy = f"give it for stage {self._stage!r}" if self._stage is not None else "leave it out"
                    raise InputError(f"{fields[stage]}.{name}", problem, remedy)
                if self._vocabulary is None and "logprobs" not in name:
                    problem = "needs to know what ids write, which cannot be told of this checkpoint's tokenizer"
                    raise InputError(f"{fields[stage]}.{name}", problem, "use ids: stop_token_ids or bad_words_ids")
            _check_stops(params.stop or (), f"{fields[stage]}.stop")
            _check_words(params.bad_words or (), f"{fields[stage]}.bad_words")

    def check_forms(self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]) -> None:
        """May take seconds, the first time. Raises InputError for forms that do not compile. `sampling` has passed `check`."""
        for stage, params in sampling.items():
            if params.structured is not None and self._grammars is not None:
                self._grammars.compile(params.structured, f"{fields[stage]}.structured")

    def in_ids(self, sampling: Mapping[str, SamplingParams]) -> Mapping[str, SamplingParams]:
        """What stages are asked for, with bad words as ids, and without what reaches them as rules."""
        return {
            name: self._params_in_ids(params) if name == self._stage else params for name, params in sampling.items()
        }

    def in_texts(
        self, error: InputError, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str]
    ) -> InputError:
        """What a stage says of ids that were texts, as an error about the texts."""
        if self._stage is None:
            return error
        asked, field = sampling.get(self._stage), fields.get(self._stage, "")
        if asked is None or asked.bad_words_ids or error.field != f"{field}.bad_words_ids":
            return error
        return InputError(f"{field}.bad_words", f"as ids, {error.problem}", error.remedy)

    def _params_in_ids(self, params: SamplingParams) -> SamplingParams:
        texts: dict[str, Any] = {"stop": (), "bad_words": (), "structured": None}
        if params.bad_words and self._vocabulary is not None:
            words = _bad_word_ids(params.bad_words, self._vocabulary)
            texts["bad_words_ids"] = tuple(dict.fromkeys((*(params.bad_words_ids or ()), *words)))
        return msgspec.structs.replace(params, **texts)

    def compile(
        self, sampling: Mapping[str, SamplingParams], fields: Mapping[str, str], samples: int = 1
    ) -> CompiledSampling:
        """May take seconds: a form may have to be compiled. `sampling` has passed `check`.

        samples: if there are several, each stage gets a seed here if nobody gave one, so that they differ by their index only.
        Raises InputError for forms that do not compile.
        """
        stage, vocabulary = self._stage, self._vocabulary
        if samples > 1:
            sampling = self._seeded(sampling)
        if stage is None or vocabulary is None:
            return CompiledSampling(sampling)
        defaults = self._defaults.get(stage, SamplingParams())
        asked = sampling.get(stage, SamplingParams())
        params = asked.with_defaults(defaults)
        if not (params.stop or params.bad_words or params.structured):
            return CompiledSampling(sampling)
        field = fields.get(stage, f"{stage}.sampling")
        words = {"bad_words": params.bad_words, "bad_words_ids": params.bad_words_ids}
        return CompiledSampling(
            sampling=self.in_ids({**sampling, stage: msgspec.structs.replace(asked, **words)}),
            _stage=stage,
            _vocabulary=vocabulary,
            _stops=StopTexts(params.stop) if params.stop else None,
            _min_tokens=params.min_tokens or 0,
            _form=self._form(params, defaults, asked, f"{field}.structured"),
        )

    def _seeded(self, sampling: Mapping[str, SamplingParams]) -> Mapping[str, SamplingParams]:
        asked = {name: sampling.get(name, SamplingParams()) for name in self._defaults}
        return {
            name: msgspec.structs.replace(params, seed=secrets.randbits(63))
            if params.with_defaults(self._defaults[name]).seed is None
            else params
            for name, params in asked.items()
        }

    def _form(
        self, params: SamplingParams, defaults: SamplingParams, asked: SamplingParams, field: str
    ) -> _Form | None:
        if params.structured is None or self._grammars is None:
            return None
        own = defaults.stop_token_ids if not params.ignore_eos else ()
        ends = frozenset((*(own or ()), *(asked.stop_token_ids or ())))
        return _Form(self._grammars.compile(params.structured, field), ends, field)


def _defaults(pipeline: Pipeline, stage: str) -> SamplingParams:
    defaults = msgspec.structs.asdict(pipeline.stage(stage).options)["sampling"]
    assert isinstance(defaults, SamplingParams)
    return defaults


def _check_stops(texts: Sequence[str], field: str) -> None:
    if sum(len(check_unicode(text, field)) for text in texts) > _MOST_STOP_BYTES:
        raise InputError(field, f"are more than {_MOST_STOP_BYTES} bytes in all", "give fewer or shorter texts")


def _check_words(words: Sequence[str], field: str) -> None:
    if len(words) > _MOST_BAD_WORDS:
        raise InputError(field, f"are {len(words)} words", f"use at most {_MOST_BAD_WORDS}")
    if sum(len(check_unicode(word, field)) for word in words) > _MOST_BAD_WORD_BYTES:
        raise InputError(field, f"are more than {_MOST_BAD_WORD_BYTES} bytes in all", "give fewer or shorter words")


def _bad_word_ids(words: Sequence[str], vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """Each word's ids as it begins a text, and as it follows another word: tokenizers tell the two apart by the space before it."""
    texts = [text for word in words for text in (word, f" {word}")]
    return [ids for ids in (tuple(vocabulary.encode(text)) for text in texts) if ids]
