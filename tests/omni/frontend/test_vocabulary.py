"""What ids write, against the tokenizers' own decoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from omni.frontend.hf_vocabulary import hf_vocabulary
from tests.omni.frontend.tokenizer_makes import MAKES, SAMPLE, id_of, vocabulary

TEXTS = [SAMPLE[0], "Größe, 你好世界", *SAMPLE[2:], "a\tb\nc", "\u00a0x\u0378", "two  spaces"]


def decoded(make: str, ids: list[int]) -> str:
    return str(MAKES[make]().decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("make", MAKES)
@given(picks=st.lists(st.integers(0, 2**20), max_size=12))
def test_bytes_of_ids_together_are_the_decoded_text(make: str, picks: list[int]):
    tokens = vocabulary(make).tokens
    assert len(tokens) == len(MAKES[make]())
    ids = [pick % len(tokens) for pick in picks]
    written = b"".join(map(vocabulary(make).written, ids))
    try:
        text = written.decode()
    except UnicodeDecodeError:
        # Of broken characters there is one sign or several, as the library likes.
        if make != "byte level":
            return
        text = written.decode(errors="replace")
    dropped = text.removeprefix(" ") if make != "byte level" else text
    assert decoded(make, ids) in (text, dropped)


@pytest.mark.parametrize("make", ["byte level", "byte fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_a_text_are_those_of_its_ids(make: str, text: str):
    ids = vocabulary(make).encode(text)
    assert b"".join(map(vocabulary(make).written, ids)).decode().removeprefix(" ") == text


@pytest.mark.parametrize("make", MAKES)
def test_special_and_unknown_ids_write_nothing(make: str):
    end, think = (id_of(MAKES[make](), word) for word in ("<|end|>", "<think>"))
    assert vocabulary(make).written(end) == b""
    assert vocabulary(make).written(len(vocabulary(make).tokens) + 7) == b""
    assert vocabulary(make).written(think) == b"<think>"


def test_every_byte_is_some_id():
    for make in ("byte level", "byte fallback"):
        assert {bytes([byte]) for byte in range(256)} <= set(vocabulary(make).tokens)


def test_a_tokenizer_without_a_readable_vocabulary_gives_none():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert hf_vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) is None
    tokenizer.decoder = None
    assert hf_vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) is None
    assert hf_vocabulary({}) is None
