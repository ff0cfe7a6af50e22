"""Incremental text against the tokenizers' own decoding of all ids at once."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from omni.frontend.text import IncrementalDecoder

SPECIAL = ["<|start|>", "<|end|>"]
SAMPLE = ["hello world, the quick brown fox", "Grüße, 你好世界", "naïve café 👩‍👩‍👧 done", "на здоровье"]


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE: a token is any run of bytes, also a part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SAMPLE * 5, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """Spaces marked, the first one dropped; characters without a token fall back to their bytes."""
    letters = {letter: index + 258 for index, letter in enumerate("▁abcdehlorw")}
    vocab = {"<unk>": 0, "<|end|>": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)} | letters
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def whole(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def pieces(tokenizer: PreTrainedTokenizerFast, ids: list[int], sizes: list[int]) -> list[str]:
    """The ids pushed in runs of `sizes`, over and over."""
    decoder = IncrementalDecoder(tokenizer)
    given_out: list[str] = []
    place = turn = 0
    while place < len(ids):
        size = sizes[turn % len(sizes)]
        given_out.append(decoder.push(ids[place : place + size]))
        place, turn = place + size, turn + 1
    return [*given_out, decoder.finish()]


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(st.text(max_size=120), sizes)
def test_text_on_byte_level_bpe(text: str, sizes: list[int]) -> None:
    ids = byte_level().encode(text, add_special_tokens=False)
    assert "".join(pieces(byte_level(), ids, sizes)) == whole(byte_level(), ids)


@given(st.lists(st.integers(0, 321), max_size=300), sizes)
def test_any_ids_on_byte_level_bpe(ids: list[int], sizes: list[int]) -> None:
    """A model with random weights writes broken characters and special tokens anywhere."""
    assert "".join(pieces(byte_level(), ids, sizes)) == whole(byte_level(), ids)


@example("你" * 40, [1])
@given(st.text(alphabet="abc held wor你🦊é ", max_size=120), sizes)
def test_text_with_byte_fallback(text: str, sizes: list[int]) -> None:
    ids = byte_fallback().encode(text, add_special_tokens=False)
    assert "".join(pieces(byte_fallback(), ids, sizes)) == whole(byte_fallback(), ids)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = [
        byte_level().convert_tokens_to_ids(token) for token in pre_tokenizers.ByteLevel().pre_tokenize_str("🦊")[0][0]
    ]
    assert len(ids) == 5, "a space and four bytes"
    assert pieces(byte_level(), ids, [1]) == [" ", "", "", "", "🦊", ""]


def test_half_a_character_waits_behind_any_number_of_silent_tokens() -> None:
    first, *rest = byte_level().encode("🦊", add_special_tokens=False)
    ids = [first, *[byte_level().eos_token_id] * 100, *rest]
    assert "".join(pieces(byte_level(), ids, [1])) == whole(byte_level(), ids) == "🦊"


def test_half_a_character_at_the_end_shows_as_such() -> None:
    ids = byte_level().encode("a🦊", add_special_tokens=False)[:-1]
    given_out = pieces(byte_level(), ids, [1])
    assert given_out[-1] == "\ufffd"
    assert "".join(given_out) == whole(byte_level(), ids)


@pytest.mark.parametrize("text", ["hello world " * 400, "你好🦊" * 400], ids=["ascii", "wide"])
def test_the_window_stays_small(text: str) -> None:
    """However long the text, each push decodes a bounded number of ids."""
    longest = 0

    class Watched:
        def decode(self, token_ids: list[int], **options: bool) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return whole(byte_level(), token_ids)

    decoder = IncrementalDecoder(Watched())
    ids = byte_level().encode(text, add_special_tokens=False)
    assert "".join([*(decoder.push([token]) for token in ids), decoder.finish()]) == text
    assert longest < 64


def test_special_tokens_are_silent() -> None:
    start, end = byte_level().convert_tokens_to_ids(SPECIAL)
    ids = [start, *byte_level().encode("hello", add_special_tokens=False), end]
    given_out = pieces(byte_level(), ids, [1])
    assert given_out[0] == ""
    assert "".join(given_out) == "hello"
