"""Compiles the forms that texts must have, each once."""

import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits

from omni.errors import InputError, check_unicode, shortened
from omni.frontend.grammar.forms import form_of, grammar_text
from omni.frontend.grammar.matcher import Grammar
from omni.frontend.grammar.tokens import constraint_tokens
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import StructuredOutput

LONGEST_FORM = 2**18
"""Bytes of a form, as JSON where it is given as a dict or as texts. Compiling so many takes seconds."""

KEPT_BYTES = 2**26
"""Of compiled forms."""

# What a user is told is about the form, not about the state of a parser.
_LIMITS = LLParserLimits(verbose_errors=False)


def compiled_bytes(text: str) -> int:
    """What a compiled form takes at most: measured, up to 200 bytes for each of its text (a schema of many properties), and the
    tables that every parser begins with."""
    return 2**16 + 256 * len(text.encode())


class _Turn:
    """Of those who want a form at the same time: one compiles it, the others find what came of it.

    Whoever is interrupted leaves it to the next of them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outcome: Grammar | str | None = None


class GrammarCompiler:
    """Keeps the forms that were asked for last, up to `kept_bytes` by `compiled_bytes`, and nothing of those it refuses. Any
    thread may call it, and may be interrupted; who asks for a form that another compiles waits for it."""

    def __init__(self, vocabulary: Vocabulary, kept_bytes: int = KEPT_BYTES) -> None:
        self._vocab_size = len(vocabulary.tokens)
        self._tokens = constraint_tokens(vocabulary)
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        # A turn lasts as long as somebody holds it: nobody has to take it away.
        self._turns: WeakValueDictionary[tuple[str, str], _Turn] = WeakValueDictionary()

    @property
    def kept(self) -> int:
        """Forms that are kept."""
        return len(self._kept)

    def compile(self, structured: StructuredOutput, field: str) -> Grammar:
        """May take seconds. Raises InputError that names the form below `field` and says what the compiler says."""
        form, text = _form(structured, field)
        key = form, text
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            turn = self._turns.setdefault(key, _Turn())
        with turn.lock:
            if turn.outcome is None:
                outcome = self._compile(form, text)
                if isinstance(outcome, Grammar):
                    self._keep(key, outcome)
                turn.outcome = outcome
            grammar = turn.outcome
        if isinstance(grammar, str):
            remedy = "correct it; docs/sampling.md names the dialects"
            raise InputError(f"{field}.{form}", f"does not compile: {shortened(grammar)}", remedy)
        return grammar

    def _keep(self, key: tuple[str, str], grammar: Grammar) -> None:
        with self._lock:
            self._kept[key] = grammar
            # Summed up each time: a running total would be wrong after an interrupt.
            held = sum(compiled_bytes(text) for _, text in self._kept)
            while held > self._kept_bytes:
                (_, oldest), _ = self._kept.popitem(last=False)
                held -= compiled_bytes(oldest)

    def _compile(self, form: str, text: str) -> Grammar | str:
        """The grammar, or what is wrong with the form."""
        try:
            matcher = LLMatcher(self._tokens, grammar_text(form, text), log_level=0, limits=_LIMITS)
        except ValueError as error:
            return _one_line(error)
        return _one_line(matcher.get_error()) if matcher.is_error() else Grammar(matcher, self._vocab_size)


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())


def _form(structured: StructuredOutput, field: str) -> tuple[str, str]:
    """Raises InputError for one that cannot be written, or is too long."""
    try:
        form, text = form_of(structured)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {shortened(str(error))}"
        raise InputError(f"{field}.json", problem, "give a JSON schema") from error
    if len(text) > LONGEST_FORM or len(check_unicode(text, f"{field}.{form}")) > LONGEST_FORM:
        problem = f"has more than {LONGEST_FORM:,} bytes"
        raise InputError(f"{field}.{form}", problem, "give a shorter form, or several requests with a part of it each")
    return form, text
