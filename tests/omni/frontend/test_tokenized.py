"""Plain texts and their ids, and the turns that tokens belong to."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from omni.errors import InputError
from omni.frontend.base import Chat, ImagePart, Message, Prepared, TextPart
from omni.frontend.chat import TokenizedFrontend, message_texts
from omni.frontend.turns import in_turns_of, last_turn_of
from omni.tiny import byte_tokenizer


class Reader(TokenizedFrontend):
    def prepare(self, chat: Chat) -> Prepared:
        raise NotImplementedError


def chat(*contents: tuple[TextPart | ImagePart, ...]) -> Chat:
    messages = tuple(Message("user", content) for content in contents)
    return Chat(messages, frozenset({"audio"}), None, {})


def test_parts_of_a_message_are_one_text() -> None:
    assert message_texts(chat((TextPart("a "), TextPart("b")), (TextPart(""),))) == ["a b", ""]


def test_media_are_refused() -> None:
    picture = ImagePart(Image.new("RGB", (4, 4)), "messages[1].content[2].image_url")
    with pytest.raises(
        InputError, match=r"messages\[1\].content\[2\].image_url: is sound or a picture; give this model text only"
    ):
        message_texts(chat((TextPart("a"),), (TextPart("a"), TextPart("b"), picture)))


def test_threads_may_share_a_tokenizer_of_bytes() -> None:
    tokenizer = byte_tokenizer(("<|go|>",), eos_token="<|end|>")
    assert len(tokenizer) == 258
    assert tokenizer.convert_tokens_to_ids(["<|end|>", "<|go|>"]) == [256, 257]
    reader, texts = Reader(tokenizer), ["grüße 你好\n", "a<|go|>b", ""] * 30
    with ThreadPoolExecutor(4) as threads:
        ids = list(threads.map(reader.text_ids, texts))
    assert all(each.dtype == np.int64 for each in ids)
    assert [tokenizer.decode(each) for each in ids] == texts
    assert ids[1].tolist()[1] == 257


START, USER, ANSWER = 9, 1, 2


def test_turns_by_role() -> None:
    ids = np.array([5, START, USER, 5, 6, START, ANSWER, USER, START, USER, START, ANSWER])
    assert np.flatnonzero(in_turns_of(USER, ids, START)).tolist() == [1, 2, 3, 4, 8, 9]
    assert np.flatnonzero(in_turns_of(ANSWER, ids, START)).tolist() == [5, 6, 7, 10, 11]
    assert (last_turn_of(USER, ids, START), last_turn_of(ANSWER, ids, START)) == (8, 10)


def test_a_turn_that_only_begins_has_no_role() -> None:
    assert not in_turns_of(USER, np.array([START, ANSWER, USER, START]), START).any()
    assert last_turn_of(ANSWER, np.array([START, ANSWER, USER, START]), START) == 0
