"""Host rules about text, from their data."""

from functools import lru_cache

from omni.frontend.grammar import GrammarCompiler, GrammarMatcher
from omni.frontend.stops import StopStrings, StopTexts
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import HostLogitsProcessor, HostRules, TextRules

_KEPT_STOPS = 16


class HostRulesBuilder:
    """Made before serving: with a large vocabulary it holds the interpreter lock for a while. Any thread may call it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.grammars = GrammarCompiler(vocabulary)
        self._vocabulary = vocabulary
        # The samples of a request share the automaton.
        self._stop_texts = lru_cache(maxsize=_KEPT_STOPS)(StopTexts)

    def build(self, rules: TextRules) -> HostRules:
        """The rules for one sample of a request. May take seconds, for a grammar. Raises InputError if it is wrong."""
        stops = None
        if rules.stop:
            stops = StopStrings(self._stop_texts(rules.stop), self._vocabulary, rules.min_tokens)
        processors: tuple[HostLogitsProcessor, ...] = ()
        if rules.structured is not None:
            grammar = self.grammars.compile(rules.structured, rules.field)
            processors = (GrammarMatcher(grammar, rules.ends, rules.field),)
        return HostRules(stops, processors)
