"""Ids of texts, long ones and in many threads, against the tokenizers' own."""

import random
import resource
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from omni.errors import InputError
from omni.frontend.encoding import Encoder, PromptLimit, encoder, parts
from omni.tiny import byte_tokenizer
from tests.omni.frontend.tokenizer_makes import MAKES, byte_level

pytestmark = pytest.mark.thorough

LLAMA_REGEX = PRETOKENIZE_REGEX.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SIGNS = [
    *"abzK09 \n\r\t'.,;!?-_/(<>|",
    *("é", "e\u0301", "\u0300", "ß", "Я", "你", "。", "ー", "가", "\u1161", "\u11a8", "\u017f", "²", "\u00a0"),
]
BITS = [*SIGNS, "'s", "'ll ", "<think>", "<|end|>", "\n\n", "   ", "hello world", " a", "12345", "🙂\u200d"]


def split_by(pattern: str) -> PreTrainedTokenizerFast:
    """Byte pairs of `tokenizer_makes`, cut into words as a published tokenizer does it, with what begins a text."""
    made = Tokenizer(byte_level().backend_tokenizer.model)
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.add_special_tokens([AddedToken("<|begin|>", special=True), AddedToken("<|end|>", special=True)])
    made.add_tokens([AddedToken("<think>", normalized=False)])
    begin = made.token_to_id("<|begin|>")
    assert begin is not None
    made.post_processor = processors.TemplateProcessing(
        "<|begin|> $A <|end|>", None, [("<|begin|>", begin), ("<|end|>", begin + 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


@cache
def tokenizer(make: str) -> Any:
    match make:
        case "qwen":
            return split_by(PRETOKENIZE_REGEX)
        case "llama":
            return split_by(LLAMA_REGEX)
        case "bytes":
            return byte_tokenizer(("<think>",), eos_token="<|end|>")
    return MAKES[make]()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encoder, parts):
        monkeypatch.setattr(module, "PART", 24)


@pytest.mark.parametrize("make", ["qwen", "llama", "bytes", *MAKES])
def test_a_text_in_parts_has_the_ids_of_the_whole(make: str, small_parts: None) -> None:
    words, own = tokenizer(make), Encoder(tokenizer(make))
    chance, cuts = random.Random(make), 0
    for _ in range(300):
        text = "".join(chance.choices(BITS, k=chance.randrange(10, 200)))
        assert own.encode(text).tolist() == words(text)["input_ids"]
        assert own.encode(text, add_special_tokens=False).tolist() == words(text, add_special_tokens=False)["input_ids"]
        cuts += len(list(parts.parts(text))) - 1
    assert own._may_part == (make in ("qwen", "llama", "bytes"))
    assert cuts > 300


@given(text=st.text(max_size=60), filler=st.sampled_from([*SIGNS, "", "a b", "word, "]))
def test_parts_are_the_text(text: str, filler: str) -> None:
    whole = (text + filler * 40) * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART", 24)
        assert "".join(parts.parts(whole)) == whole


@pytest.mark.parametrize(
    "backend",
    [
        {"normalizer": normalizers.NFKC()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre_tokenizers.Split(Regex(r".{7}|.+"), behavior="isolated")},
        {"model": models.BPE({"a": 0}, [], dropout=0.5)},
        {"added": AddedToken("two words")},
        {"added": AddedToken("<x>", rstrip=True)},
    ],
)
def test_other_tokenizers_get_their_texts_whole(backend: dict[str, Any]) -> None:
    made = Tokenizer(backend.get("model") or models.BPE({"a": 0}, []))
    made.pre_tokenizer = backend.get("pre_tokenizer") or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if "normalizer" in backend:
        made.normalizer = backend["normalizer"]
    made.add_tokens([backend["added"]] if "added" in backend else [])
    assert not parts.may_part(made)


@pytest.mark.parametrize("gap", [False, True])
def test_added_tokens_keep_their_ids(gap: bool) -> None:
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "<c>": 3 if gap else 2, "d": 2 if gap else 3}, []))
    made.add_tokens([AddedToken("<c>", special=True), AddedToken("<e>"), "a"])
    words = PreTrainedTokenizerFast(tokenizer_object=made)
    assert Encoder(words).encode("ab<e><c>d").tolist() == words("ab<e><c>d")["input_ids"]


def test_threads_do_not_wait_for_each_other() -> None:
    """While a long text is encoded in one thread, others encode short ones, and Python runs."""
    own, words = Encoder(tokenizer("metaspace")), tokenizer("metaspace")
    text, ended = "hello world " * 20_000, threading.Event()
    ids: list[np.ndarray] = []

    def encode() -> None:
        ids.append(own.encode(text))
        ended.set()

    thread = threading.Thread(target=encode)
    want = words("hello")["input_ids"]
    thread.start()
    short = 0
    while not ended.is_set() and short < 10_000:
        assert own.encode("hello").tolist() == want
        short += 1
        time.sleep(0.001)
    thread.join()
    assert short > 20
    assert ids[0].tolist() == words(text)["input_ids"]


def test_padding_in_another_thread_changes_no_encoding() -> None:
    words = byte_tokenizer(("<think>",), eos_token="<|end|>", pad_token="<|pad|>")
    own = Encoder(words)
    stop = threading.Event()

    def pad() -> None:
        while not stop.is_set():
            words(["a", "long text"], padding=True, truncation=True, max_length=3)

    thread = threading.Thread(target=pad)
    thread.start()
    try:
        for _ in range(500):
            assert own.encode("hello").tolist() == own.encode("hello", add_special_tokens=False).tolist()
        assert len(own.encode("hello")) == 5
    finally:
        stop.set()
        thread.join()


def test_a_text_that_cannot_fit_is_refused_before_it_is_read() -> None:
    limit = PromptLimit("thinker", 4095)
    longest = Encoder(tokenizer("bytes")).longest_token()
    assert longest == len("<think>")
    limit.check_bytes(4095 * longest, longest)
    said = (
        r"messages: hold 28,666 bytes of text, and thinker takes 4096 tokens, at least one of them generated, of at most 7 bytes "
        r"each; shorten them, or raise thinker.max_model_len"
    )
    with pytest.raises(InputError, match=said):
        limit.check_bytes(4095 * longest + 1, longest)


def test_a_long_text_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    encode = encoder._ids

    def counted(words: Tokenizer, text: str, add_special_tokens: bool) -> Any:
        read.append(len(text))
        return encode(words, text, add_special_tokens)

    monkeypatch.setattr(encoder, "_ids", counted)
    own, limit = Encoder(tokenizer("bytes")), PromptLimit("thinker", 200_000)
    with pytest.raises(InputError, match=r"prompt: has at least \d+,\d+ tokens, and thinker takes 200001 tokens"):
        own.encode("word " * 2_000_000, limit=limit)
    assert 200_000 < sum(read) <= 200_000 + parts.PART


def test_a_text_without_an_end_of_a_word_is_refused() -> None:
    problem = r"messages: hold 1,048,577 characters without the end of a word, more than 1,048,576"
    with pytest.raises(InputError, match=problem):
        Encoder(tokenizer("bytes")).encode("a" * (parts.LONGEST_PART + 1))


@pytest.mark.parametrize("unit", [" ", "a", "ab\n", "好", "1"])
def test_a_million_signs(unit: str) -> None:
    """Within seconds, each; a quadratic algorithm would take hours."""
    own = Encoder(tokenizer("qwen"))
    begun = time.thread_time()
    ids = own.encode(unit * (300_000 // len(unit)), add_special_tokens=False)
    assert time.thread_time() - begun < 20
    assert len(ids) > 0


def test_memory_for_a_long_text_is_returned() -> None:
    own = Encoder(tokenizer("qwen"))
    text = "the quick brown fox, 12 times. " * 50_000
    own.encode(text[:100_000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = own.encode(text, add_special_tokens=False)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 60 * 2**20 + 4 * ids.nbytes
