"""Incremental text against the tokenizers' own decoding of all ids at once."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from omni.frontend.text import IncrementalDecoder
from tests.omni.frontend.tokenizer_makes import byte_fallback, byte_level, id_of


def whole(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def pieces(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], sizes: list[int]) -> list[str]:
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


@given(st.lists(st.integers(0, 324), max_size=300), sizes)
def test_any_ids_on_byte_level_bpe(ids: list[int], sizes: list[int]) -> None:
    """A model with random weights writes broken characters and special tokens anywhere."""
    assert "".join(pieces(byte_level(), ids, sizes)) == whole(byte_level(), ids)


@example("你" * 40, [1])
@given(st.text(alphabet="abc held wor你🦊é ", max_size=120), sizes)
def test_text_with_byte_fallback(text: str, sizes: list[int]) -> None:
    ids = byte_fallback().encode(text, add_special_tokens=False)
    assert "".join(pieces(byte_fallback(), ids, sizes)) == whole(byte_fallback(), ids)


def test_a_character_comes_with_its_last_byte() -> None:
    ids = [id_of(byte_level(), token) for token in pre_tokenizers.ByteLevel().pre_tokenize_str("🦊")[0][0]]
    assert len(ids) == 5, "a space and four bytes"
    assert pieces(byte_level(), ids, [1]) == [" ", "", "", "", "🦊", ""]


def test_half_a_character_waits_behind_any_number_of_silent_tokens() -> None:
    first, *rest = byte_level().encode("🦊", add_special_tokens=False)
    ids = [first, *[id_of(byte_level(), "<|end|>")] * 100, *rest]
    assert "".join(pieces(byte_level(), ids, [1])) == whole(byte_level(), ids) == "🦊"


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
