"""Compiles the forms that texts must have, each once."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from llguidance import LLMatcher, LLParserLimits

from omni.errors import InputError
from omni.frontend.grammar.forms import form_of, grammar_text
from omni.frontend.grammar.guide import Grammar
from omni.frontend.grammar.tokens import constraint_tokens
from omni.frontend.vocabulary import Vocabulary
from omni.sampling_params import StructuredOutput

_KEPT = 128
# What a user is told is about the form, not about the state of a parser.
_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarCompiler:
    """Keeps the forms that were asked for last. Any thread may call it; who asks for a form that another compiles waits for it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocab_size = len(vocabulary.tokens)
        self._tokens = constraint_tokens(vocabulary)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Future[Grammar | str]] = OrderedDict()

    def compile(self, structured: StructuredOutput, field: str) -> Grammar:
        """May take seconds. Raises InputError that names the form below `field` and says what the compiler says."""
        try:
            form, text = form_of(structured)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{field}.json", f"cannot be written as JSON: {error}", "give a JSON schema") from error
        with self._lock:
            known = self._known.get((form, text))
            outcome = self._known[form, text] = known if known is not None else Future()
            self._known.move_to_end((form, text))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        if known is None:
            try:
                outcome.set_result(self._compile(form, text))
            except BaseException as error:
                # Whoever waits for it must hear of it; who comes later tries again.
                outcome.set_exception(error)
                with self._lock:
                    if self._known.get((form, text)) is outcome:
                        del self._known[form, text]
        grammar = outcome.result()
        if isinstance(grammar, str):
            remedy = "correct it; docs/sampling.md names the dialects"
            raise InputError(f"{field}.{form}", f"does not compile: {grammar}", remedy)
        return grammar

    def _compile(self, form: str, text: str) -> Grammar | str:
        """The grammar, or what is wrong with the form."""
        try:
            matcher = LLMatcher(self._tokens, grammar_text(form, text), log_level=0, limits=_LIMITS)
        except ValueError as error:
            return _one_line(error)
        return _one_line(matcher.get_error()) if matcher.is_error() else Grammar(matcher, self._vocab_size)


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())
