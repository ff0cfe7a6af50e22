"""Texts that any sampling under the masks can give, against the form they must have, checked by hand."""

import gc
import json
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

from omni.errors import InputError
from omni.frontend.grammar import KEPT_BYTES, LONGEST_GRAMMAR, GrammarCompiler, GrammarMatcher, compiled_bytes
from omni.frontend.hf_vocabulary import hf_vocabulary
from omni.frontend.vocabulary import Vocabulary
from omni.sampling import StructuredOutput
from omni_qwen3_omni.tiny.tokenizer import write_tokenizer
from tests.omni.frontend.tokenizer_makes import MAKES, id_of
from tests.omni.frontend.tokenizer_makes import vocabulary as vocabulary_of
from tests.support.interrupts import everywhere
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import resident_bytes

pytestmark = pytest.mark.thorough

AB = Vocabulary((b"a", b"b"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue", "ü\n"]}, "maxItems": 3},
        "ok": {"type": "boolean"},
        "inner": {"type": ["null", "object"], "properties": {"x": {"type": "number"}}, "additionalProperties": False},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
EBNF = 'root ::= term ("+" term)*\nterm ::= [0-9]{1,3} | "(" root ")"'
LARK = 'start: term ("+" term)*\nterm: /[0-9]{1,3}/ | "(" start ")"'


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, int]:
    """The tiny family's vocabulary and the id that ends its texts."""
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), 4096)
    vocabulary = hf_vocabulary(tokenizer)
    assert vocabulary is not None
    return vocabulary, id_of(tokenizer, "<|im_end|>")


@pytest.fixture(scope="module")
def compiler(tiny: tuple[Vocabulary, int]) -> GrammarCompiler:
    return GrammarCompiler(tiny[0])


def allowed(matcher: GrammarMatcher) -> list[int]:
    """The ids that are allowed next."""
    mask = matcher.edit().allowed
    assert mask is not None
    return [64 * column + bit for column, bits in enumerate(mask.tolist()) for bit in range(64) if bits >> bit & 1]


def matcher_of(compiler: GrammarCompiler, ends: Sequence[int] = (), **form: Any) -> GrammarMatcher:
    return GrammarMatcher(compiler.compile(StructuredOutput(**form), "structured"), ends, "structured")


def walk(matcher: GrammarMatcher, vocabulary: Vocabulary, ends: Sequence[int], seed: int) -> str | None:
    """A text of random allowed tokens. Some of them end it; None if it did not end."""
    dice = random.Random(seed)
    said = b""
    for _ in range(400):
        choices = allowed(matcher)
        ending = [i for i in choices if i in ends]
        token = dice.choice(ending) if ending and dice.random() < 0.3 else dice.choice(choices)
        if token not in ends:
            assert vocabulary.written(token), "a token that writes nothing"
            said += vocabulary.written(token)
        over = matcher.push(token)
        assert over or token not in ends
        if over:
            return said.decode()
    return None


def is_person(text: str) -> bool:
    got = json.loads(text)
    inner = got.get("inner")
    return (
        {"name", "age", "tags"} <= set(got) <= set(SCHEMA["properties"])
        and isinstance(got["name"], str)
        and len(got["name"]) <= 8
        and type(got["age"]) is int
        and 0 <= got["age"] <= 150
        and len(got["tags"]) <= 3
        and set(got["tags"]) <= {"red", "blue", "ü\n"}
        and type(got.get("ok", True)) is bool
        and (inner is None or (set(inner) <= {"x"} and type(inner.get("x", 0)) in (int, float)))
    )


def is_sum(text: str) -> bool:
    """Numbers of up to three digits and + and parentheses: the rest of a text after they are removed from the inside out."""
    while (reduced := re.sub(r"\((N|[0-9]{1,3})(\+(N|[0-9]{1,3}))*\)", "N", text)) != text:
        text = reduced
    return re.fullmatch(r"(N|[0-9]{1,3})(\+(N|[0-9]{1,3}))*", text) is not None


CHOICES = ('say "hi"', "two\nlines", "a/b\\c", "über [x]{2}", "say", "é", "#")
FORMS: dict[str, tuple[StructuredOutput, Callable[[str], bool]]] = {
    "json": (StructuredOutput(json=SCHEMA), is_person),
    "json text": (StructuredOutput(json=json.dumps(SCHEMA)), is_person),
    "regex": (
        StructuredOutput(regex=r"(the|a) [0-9A-Zü]{2,6}[.!?]{1,2}|ü+"),
        lambda text: re.fullmatch(r"(the|a) [0-9A-Zü]{2,6}[.!?]{1,2}|ü+", text) is not None,
    ),
    "choice": (StructuredOutput(choice=CHOICES), lambda text: text in CHOICES),
    "ebnf": (StructuredOutput(grammar=EBNF), is_sum),
    "lark": (StructuredOutput(grammar=LARK), is_sum),
}


@pytest.mark.parametrize("form", FORMS)
def test_texts_follow_the_grammar(tiny: tuple[Vocabulary, int], compiler: GrammarCompiler, form: str):
    structured, has_form = FORMS[form]
    vocabulary, end = tiny
    grammar = compiler.compile(structured, "structured")
    texts = [walk(GrammarMatcher(grammar, [end], "structured"), vocabulary, [end], seed) for seed in range(80)]
    whole = [text for text in texts if text is not None]
    assert len(whole) > 40
    assert len(set(whole)) > 4
    assert [text for text in whole if not has_form(text)] == []


@pytest.mark.parametrize("make", ["byte level", "byte fallback"])
@pytest.mark.parametrize("form", ["json", "choice", "lark"])
def test_texts_follow_the_grammar_with_every_kind_of_tokenizer(make: str, form: str):
    structured, has_form = FORMS[form]
    end = id_of(MAKES[make](), "<|end|>")
    grammar = GrammarCompiler(vocabulary_of(make)).compile(structured, "structured")
    texts = [walk(GrammarMatcher(grammar, [end], "structured"), vocabulary_of(make), [end], seed) for seed in range(20)]
    assert sum(text is not None for text in texts) > 4
    assert [text for text in texts if text is not None and not has_form(text)] == []


def test_a_forced_character_begins_every_allowed_token():
    for make in ("byte level", "byte fallback"):
        matcher = matcher_of(GrammarCompiler(vocabulary_of(make)), json={"type": "object"})
        assert {vocabulary_of(make).written(token)[:1] for token in allowed(matcher)} == {b"{"}


def test_every_choice_is_possible(tiny: tuple[Vocabulary, int], compiler: GrammarCompiler):
    vocabulary, end = tiny
    for choice in CHOICES:
        matcher = matcher_of(compiler, [end], choice=CHOICES)
        for token in vocabulary.encode(choice):
            assert token in allowed(matcher)
            matcher.push(token)


def said(compiler: GrammarCompiler, regex: str, text: str, ends: Sequence[int]) -> tuple[list[int], bool]:
    """The bytes that may follow a text, and whether there are none."""
    matcher = matcher_of(compiler, ends, regex=regex)
    over = [matcher.push(byte) for byte in text.encode()]
    return allowed(matcher), bool(over) and over[-1]


@cache
def bytes_compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary(tuple(bytes([byte]) for byte in range(256))))


def test_ends_are_allowed_exactly_where_the_text_may_end():
    newline = ord("\n")
    for ends in ([newline], [newline, 300]):
        # An end id with a text is an end only, also where the grammar would allow its text.
        assert said(bytes_compiler(), "a[b\n]{2,3}", "a", ends) == ([ord("b")], False)
        assert said(bytes_compiler(), "a[b\n]{2,3}", "abb", ends) == (sorted([ord("b"), *ends]), False)
        assert said(bytes_compiler(), "a[b\n]{2,3}", "abbb", ends) == (ends, True)
    assert said(bytes_compiler(), "a+", "aa", []) == ([ord("a")], False)


def test_a_mask_has_an_int64_for_every_64_tokens():
    mask = matcher_of(bytes_compiler(), [0], regex="a").edit().allowed
    assert mask is not None
    assert (str(mask.dtype), mask.shape) == ("int64", (4,))


def test_a_grammar_that_no_token_can_continue_is_refused():
    only_a = GrammarCompiler(Vocabulary((b"a",)))
    matcher = matcher_of(only_a, regex="ab")
    with pytest.raises(InputError, match="structured: no token of the vocabulary"):
        matcher.push(0)
    with pytest.raises(InputError, match="structured: no token of the vocabulary"):
        matcher_of(only_a, regex="").edit()
    assert matcher_of(only_a, [5], regex="").edit().allowed is not None


BAD: dict[str, tuple[StructuredOutput, str, str]] = {
    "no JSON": (StructuredOutput(json='{"type'), "json", "EOF while parsing"),
    "no schema": (StructuredOutput(json={"type": "thing"}), "json", "Invalid type: thing"),
    "unknown keyword": (StructuredOutput(json={"not": {}}), "json", 'Unimplemented keys: ["not"]'),
    "no JSON value": (StructuredOutput(json={"const": object()}), "json", "not JSON serializable"),
    "regex": (StructuredOutput(regex="a("), "regex", "unclosed group"),
    "look-ahead": (StructuredOutput(regex="a(?=b)"), "regex", "look-around"),
    "surrogate": (StructuredOutput(regex="\ud800"), "regex", "surrogates not allowed"),
    "choice": (StructuredOutput(choice=("\ud800",)), "choice", "not a Unicode scalar value"),
    "no rule": (StructuredOutput(grammar="root ::= digit"), "grammar", "Rule 'digit' not found"),
    "lark": (StructuredOutput(grammar="start: digit"), "grammar", 'unknown name: "digit"'),
    "no grammar": (StructuredOutput(grammar="hello"), "grammar", "Expected ::="),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_grammar_that_does_not_compile_is_named(compiler: GrammarCompiler, kind: str):
    structured, form, words = BAD[kind]
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            compiler.compile(structured, "sampling.thinker.structured")
        assert caught.value.field == f"sampling.thinker.structured.{form}"
        assert words in str(caught.value)


def test_a_grammar_is_compiled_once_and_the_oldest_is_dropped(monkeypatch: pytest.MonkeyPatch):
    compiled: list[str] = []
    fresh = GrammarCompiler(AB, 20 * compiled_bytes("a{19}"))
    compile_one = fresh._compile

    def counted(form: str, text: str) -> object:
        compiled.append(text)
        return compile_one(form, text)

    monkeypatch.setattr(fresh, "_compile", counted)
    with ThreadPoolExecutor(8) as pool:
        forms = [StructuredOutput(regex="a+")] * 40
        grammars = list(pool.map(lambda form: fresh.compile(form, "f"), forms))
    assert compiled == ["a+"]
    assert len(set(map(id, grammars))) == 1
    for count in range(10, 40):
        fresh.compile(StructuredOutput(regex=f"a{{{count}}}"), "f")
    fresh.compile(StructuredOutput(regex="a{20}"), "f")
    assert len(compiled) == 31
    assert len(fresh._kept) == 20
    fresh.compile(StructuredOutput(regex="a+"), "f")
    assert compiled[31:] == ["a+"]


def test_refused_grammars_are_not_kept():
    fresh = GrammarCompiler(AB)
    for form in (StructuredOutput(regex="a("), StructuredOutput(json="{"), StructuredOutput(grammar="root ::= (")):
        for _ in range(2):
            with pytest.raises(InputError, match="does not compile"):
                fresh.compile(form, "f")
    assert (len(fresh._kept), len(fresh._compilations)) == (0, 0)


def test_ctrl_c_anywhere_in_a_compile_leaves_the_form_to_the_next():
    form = StructuredOutput(regex="a+b")
    fresh = GrammarCompiler(AB)

    def compile_anew() -> None:
        fresh._kept.clear()
        fresh.compile(form, "f")

    def after(where: str) -> None:
        fresh._kept.clear()
        next_one = threading.Thread(target=fresh.compile, args=(form, "f"), daemon=True)
        next_one.start()
        next_one.join(PATIENCE_SECONDS)
        assert not next_one.is_alive(), where
        assert (len(fresh._kept), len(fresh._compilations)) == (1, 0), where

    assert everywhere(compile_anew, after, ("/frontend/grammar.py",)) > 20


def test_a_waiting_thread_compiles_if_the_first_is_interrupted(monkeypatch: pytest.MonkeyPatch):
    fresh = GrammarCompiler(AB)
    form = StructuredOutput(regex="a+b")
    began, interrupt = threading.Event(), threading.Event()
    compile_one = fresh._compile

    def compile_once_interrupted(form: str, text: str) -> object:
        if began.is_set():
            return compile_one(form, text)
        began.set()
        assert interrupt.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(fresh, "_compile", compile_once_interrupted)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(fresh.compile, form, "f")
        assert began.wait(PATIENCE_SECONDS)
        others = [pool.submit(fresh.compile, form, "f") for _ in range(2)]
        time.sleep(0.05)
        interrupt.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(PATIENCE_SECONDS)
        assert len({id(other.result(PATIENCE_SECONDS)) for other in others}) == 1


@pytest.mark.parametrize(
    "form",
    [
        StructuredOutput(regex="a" * (LONGEST_GRAMMAR + 1)),
        StructuredOutput(regex="ü" * (LONGEST_GRAMMAR // 2 + 1)),
        StructuredOutput(json={"enum": ["a" * LONGEST_GRAMMAR]}),
        StructuredOutput(choice=("ab",) * LONGEST_GRAMMAR),
    ],
    ids=["regex", "bytes", "json", "choice"],
)
def test_grammars_of_megabytes_are_refused_before_they_are_compiled(
    form: StructuredOutput, monkeypatch: pytest.MonkeyPatch
):
    fresh = GrammarCompiler(AB)
    monkeypatch.setattr(fresh, "_compile", None)
    with pytest.raises(InputError, match=r"has more than 262,144 bytes; give a shorter one"):
        fresh.compile(form, "f")


def test_cached_grammars_take_no_more_memory_than_counted():
    text = {"type": "string", "maxLength": 50}
    forms: list[dict[str, object]] = [
        {"type": "object", "properties": {f"{form} {name}": text for name in range(600)}} for form in range(8)
    ]
    fresh = GrammarCompiler(AB)
    fresh.compile(StructuredOutput(json={"type": "object"}), "f")
    gc.collect()
    before = resident_bytes()
    for form in forms:
        fresh.compile(StructuredOutput(json=form), "f")
    assert len(fresh._kept) > 5
    gc.collect()
    assert resident_bytes() - before < min(KEPT_BYTES, sum(compiled_bytes(json.dumps(form)) for form in forms))


def test_requests_that_share_a_grammar_are_independent(tiny: tuple[Vocabulary, int], compiler: GrammarCompiler):
    vocabulary, end = tiny
    grammar = compiler.compile(StructuredOutput(json=SCHEMA), "structured")

    def one(seed: int) -> str | None:
        return walk(GrammarMatcher(grammar, [end], "structured"), vocabulary, [end], seed)

    alone = [one(seed) for seed in range(24)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(24))) == alone
