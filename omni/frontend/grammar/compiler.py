"""Compiles the grammars of structured outputs, each once."""

import json
import re
import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from omni.errors import InputError, check_unicode, shortened
from omni.frontend.grammar.matcher import Grammar
from omni.frontend.grammar.tokens import Tokens
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import StructuredOutput

LONGEST_GRAMMAR = 2**18
"""Bytes of a structured output, as JSON if it is a dict or a list. Compiling so many takes seconds."""

KEPT_BYTES = 2**26
"""Of compiled grammars."""

# Enough for a pretty-printed document. Without a bound, a model could write spaces forever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"

# Errors for users are about the grammar, not about the state of a parser.
_LIMITS = LLParserLimits(verbose_errors=False)


def compiled_bytes(text: str) -> int:
    """Bound of a compiled grammar's memory: up to 200 bytes for each byte of text were measured (a schema of many properties),
    plus the tables of every parser."""
    return 2**16 + 256 * len(text.encode())


class _Turn:
    """Of threads that need one grammar at the same time: the first compiles it, the others take the outcome. If it is interrupted,
    the next one compiles."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.outcome: Grammar | str | None = None


class GrammarCompiler:
    """Keeps the most recently used grammars, up to `kept_bytes` by `compiled_bytes`, and no errors. Any thread may call it, and
    may be interrupted; a thread that needs a grammar that another compiles waits for it."""

    def __init__(self, vocabulary: Vocabulary, kept_bytes: int = KEPT_BYTES) -> None:
        self._vocab_size = len(vocabulary.tokens)
        # Holds the interpreter lock for about half a second for 150,000 ids: made before serving.
        self._tokens = LLTokenizer(TokenizerWrapper(Tokens(vocabulary)))
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        # A turn lasts as long as a thread refers to it, so none has to be removed.
        self._turns: WeakValueDictionary[tuple[str, str], _Turn] = WeakValueDictionary()

    @property
    def kept(self) -> int:
        """Number of grammars kept."""
        return len(self._kept)

    def compile(self, structured: StructuredOutput, field: str) -> Grammar:
        """May take seconds. Raises InputError, below `field`, with the compiler's message."""
        kind, text = _checked(structured, field)
        key = kind, text
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            turn = self._turns.setdefault(key, _Turn())
        with turn.lock:
            if turn.outcome is None:
                outcome = self._compile(kind, text)
                if isinstance(outcome, Grammar):
                    self._keep(key, outcome)
                turn.outcome = outcome
            grammar = turn.outcome
        if isinstance(grammar, str):
            remedy = "correct it; docs/sampling.md names the dialects"
            raise InputError(f"{field}.{kind}", f"does not compile: {shortened(grammar)}", remedy)
        return grammar

    def _keep(self, key: tuple[str, str], grammar: Grammar) -> None:
        with self._lock:
            self._kept[key] = grammar
            # Summed up each time: a running total would be wrong after an interruption.
            held = sum(compiled_bytes(text) for _, text in self._kept)
            while held > self._kept_bytes:
                (_, oldest), _ = self._kept.popitem(last=False)
                held -= compiled_bytes(oldest)

    def _compile(self, kind: str, text: str) -> Grammar | str:
        """The grammar, or the compiler's message."""
        try:
            matcher = LLMatcher(self._tokens, _grammar_text(kind, text), log_level=0, limits=_LIMITS)
        except ValueError as error:
            return _one_line(error)
        return _one_line(matcher.get_error()) if matcher.is_error() else Grammar(matcher, self._vocab_size)


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())


def _checked(structured: StructuredOutput, field: str) -> tuple[str, str]:
    """Raises InputError for a value that is no JSON or is too long."""
    try:
        kind, text = _kind_of(structured)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be written as JSON: {shortened(str(error))}"
        raise InputError(f"{field}.json", problem, "give a JSON schema") from error
    if len(text) > LONGEST_GRAMMAR or len(check_unicode(text, f"{field}.{kind}")) > LONGEST_GRAMMAR:
        problem = f"has more than {LONGEST_GRAMMAR:,} bytes"
        raise InputError(f"{field}.{kind}", problem, "give a shorter one, or split it over several requests")
    return kind, text


def _kind_of(structured: StructuredOutput) -> tuple[str, str]:
    """The field of `structured` that is given, and its value as a text."""
    if structured.json is not None:
        return "json", structured.json if isinstance(structured.json, str) else json.dumps(structured.json)
    if structured.regex is not None:
        return "regex", structured.regex
    if structured.choice is not None:
        return "choice", json.dumps(structured.choice)
    assert structured.grammar is not None
    return "grammar", structured.grammar


def _grammar_text(kind: str, text: str) -> str:
    """The grammar of llguidance for a result of `_kind_of`. Raises ValueError for a text that cannot be parsed."""
    match kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": _WHITESPACE})
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return LLMatcher.grammar_from_regex("|".join(_literal(choice) for choice in json.loads(text)))
        case _:
            return grammar_from("grammar", text)


def _literal(text: str) -> str:
    """A regular expression for the text itself."""
    return re.sub(r"[^0-9A-Za-z_ ]", lambda sign: f"\\u{{{ord(sign[0]):X}}}", text)
