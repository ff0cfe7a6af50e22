"""Structured outputs: grammars, each compiled once, to a mask over the vocabulary for each token."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from
from numpy.typing import NDArray

from omni.errors import InputError, check_unicode, shortened
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import LogitsEdit, StructuredOutput


class Grammar:
    """A compiled grammar. It is immutable, and all its requests share it. matcher: stays at the beginning of a text. vocab_size:
    number of ids; the next id is that of the text's end."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size

    def matcher(self) -> LLMatcher:
        """A copy at the beginning of a text, for one request."""
        return self._matcher.deep_copy()


class GrammarMatcher:
    """A `HostLogitsProcessor` that allows the tokens of a grammar, and end ids where the text may end. ends: ids that end
    generation, even those with a text. field: for errors."""

    def __init__(self, grammar: Grammar, ends: Collection[int], field: str) -> None:
        self._matcher = grammar.matcher()
        self._end = grammar.vocab_size
        self._ends = frozenset(ends)
        self._field = field
        words = max((self._end, *self._ends)) // 64 + 1
        self._ends_W = _mask(self._ends, words)
        self._texts_W = ~_mask({*self._ends, self._end}, words)
        # The last id may be the last bit of its word: the mask has no bit for the end of the text.
        self._words = max((self._end - 1, *self._ends)) // 64 + 1
        self._allowed_W, self._complete = self._next_mask()

    def edit(self) -> LogitsEdit:
        """Raises InputError if no token can follow."""
        if not self._allowed_W.any():
            raise self._dead_end()
        return LogitsEdit(allowed=self._allowed_W)

    def push(self, token: int) -> bool:
        """Raises InputError if no token can follow, or if the parser's state grew too complex."""
        if token in self._ends:
            return True
        if not self._matcher.consume_token(token):
            raise InputError(self._field, f"cannot continue after id {token}: {self._error()}", "simplify it")
        self._allowed_W, self._complete = self._next_mask()
        return self._complete

    def _next_mask(self) -> tuple[NDArray[np.int64], bool]:
        """The mask of the next token, and whether only the end can follow."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            if self._error().startswith("NoExtension"):
                raise self._dead_end()
            raise InputError(self._field, f"cannot continue: {self._error()}", "simplify it")
        padded = bytearray(8 * len(self._ends_W))
        padded[: len(bits)] = bits
        allowed_W = np.frombuffer(padded, np.int64)
        word, bit = divmod(self._end, 64)
        may_end = bool(allowed_W[word] >> bit & 1)
        allowed_W &= self._texts_W
        complete = may_end and not allowed_W.any()
        if may_end:
            allowed_W |= self._ends_W
        return allowed_W[: self._words], complete

    def _dead_end(self) -> InputError:
        return InputError(self._field, "no token of the vocabulary can continue the text", "change it")

    def _error(self) -> str:
        return shortened(" ".join(self._matcher.get_error().replace("<non-verbose/>", "").split()))


def _mask(ids: Collection[int], words: int) -> NDArray[np.int64]:
    """Bit i of word w is id 64 * w + i."""
    bits = np.zeros(64 * words, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int64)


class Tokens:
    """The vocabulary and one more id for the end of a text, independent of the end ids of the stage."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.tokens, b"<end>"]
        self.eos_token_id = len(vocabulary.tokens)
        self.special_token_ids = [self.eos_token_id]
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> Sequence[int]:
        """The tokenizer's ids of a text inside another. Where a grammar allows one text only, masks allow these ids and no others
        for its bytes: they must decode to exactly it."""
        if isinstance(text, bytes):
            raise TypeError("texts, not bytes")
        ids = self._vocabulary.encode(text)
        written = b"".join(map(self._vocabulary.written, ids))
        # Many tokenizers add a space at the beginning of a text.
        return ids if written == text.encode() else self._vocabulary.longest(text.encode())


LONGEST_GRAMMAR = 2**18
"""Bytes of a structured output, as JSON if it is a dict or a list. Compiling so many takes seconds."""

KEPT_BYTES = 2**26
"""Maximum size of the compiled grammars that are kept."""

# Enough for a pretty-printed document. Without a bound, a model could write spaces forever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,40}"

# Errors for users are about the grammar, not about the state of a parser.
_LIMITS = LLParserLimits(verbose_errors=False)


def compiled_bytes(text: str) -> int:
    """Bound of a compiled grammar's memory: up to 200 bytes for each byte of text were measured (a schema of many properties),
    plus the tables of every parser."""
    return 2**16 + 256 * len(text.encode())


class _Compilation:
    """The first of the threads that need one grammar at once compiles it for all. If it is interrupted, the next one compiles."""

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
        # Weak references: an entry exists as long as a thread refers to its compilation.
        self._compilations: WeakValueDictionary[tuple[str, str], _Compilation] = WeakValueDictionary()

    def compile(self, structured: StructuredOutput, field: str) -> Grammar:
        """May take seconds. Raises InputError, below `field`, with the compiler's message."""
        kind, text = _checked(structured, field)
        key = kind, text
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
            compilation = self._compilations.setdefault(key, _Compilation())
        with compilation.lock:
            if compilation.outcome is None:
                outcome = self._compile(kind, text)
                if isinstance(outcome, Grammar):
                    self._keep(key, outcome)
                compilation.outcome = outcome
            grammar = compilation.outcome
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
    """Raises InputError for a value that is not JSON or is too long."""
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
