"""Control tokens in what users write, against the tokenizers' and templates' own work."""

import tempfile
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen2Tokenizer

from omni.errors import InputError
from omni.frontend.base import Chat, Message, Prepared, TextPart
from omni.frontend.chat import TokenizedFrontend
from omni.frontend.encoding import PromptLimit
from omni.frontend.hf_files import load_tokenizer
from omni.tiny import write_tokenizer
from omni_csm.tiny import write_tiny as write_csm
from omni_qwen2_5_omni.tiny.tokenizer import TOKENS as QWEN_2_5
from omni_qwen3_omni.tiny.tokenizer import write_tokenizer as write_qwen_3
from tests.omni.frontend.tokenizer_makes import byte_fallback, byte_level

ENDS = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


def turned(content: str) -> str:
    turn = "<|im_start|>{{ m.role }}\n" + content + "<|im_end|>\n"
    return "{% for m in messages %}" + turn + "{% endfor %}<|im_start|>assistant\n"


TEMPLATES = {
    "own": None,
    "trim": turned("{{ m.content | trim }}"),
    "twice": turned("{% if 'b' in m.content %}<|vision_start|>{% endif %}{{ m.content }} {{ m.content[:4] }}"),
    "thoughts": turned("{{ m.content.split('</think>')[-1].lstrip('\n') }}"),
    "one string": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}",
    "by role": "{% for m in messages %}{{ '<|im_' + 'start|>' + m.role + '|' + m.content + '<|im_end|>' }}{% endfor %}",
}
EDITING = {
    "no spaces": turned("{{ m.content | replace(' ', '') }}"),
    "no middle": turned("{{ m.content[:5] + m.content[7:] }}"),
}
"""Without them, a text may be a control token that the text itself does not hold."""
WORDS = ["<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_pad|>", "<|begin_of_text|>", "<|end_of_text|>", "<|end|>"]
BITS = [
    *("<|im_", "start|>", "<", "|>", "|", ">", "<|", "</think>", "<think>", "\n", " ", "  ", "the", " hello", "b"),
    *("é", "e\u0301", "好"),
]


class Reader(TokenizedFrontend):
    def prepare(self, chat: Chat) -> Prepared:
        raise NotImplementedError

    def pieces_ids(self, turns: Any) -> list[int]:
        """As for texts with control tokens, whether there are any or not."""
        render = partial(self.render, answer=True)
        pieces = self._control.pieces(turns, render(turns), render)
        return list(map(int, self._encoder.encode_pieces(pieces)))

    @property
    def words(self) -> dict[int, str]:
        return {i: str(word) for i, word in self._tokenizer.added_tokens_decoder.items() if word.special}


def asked(control_tokens: Any = "text", limit: PromptLimit | None = None) -> Chat:
    message = Message("user", (TextPart("x"),))
    return Chat((message,), frozenset({"text"}), None, {}, control_tokens=control_tokens, limit=limit)


@cache
def tokenizer(family: str, template: str = "own") -> Any:
    folder = Path(tempfile.mkdtemp(prefix="omni-words-"))
    match family:
        case "qwen3":
            words: Any = write_qwen_3(folder, 1024)
        case "qwen2.5":
            words = write_tokenizer(folder, QWEN_2_5, Qwen2Tokenizer, "Qwen2_5OmniProcessor", 1024)
        case "csm":
            write_csm(folder)
            words = AutoTokenizer.from_pretrained(folder)
        case _:
            words = {"marked": byte_fallback, "bytes": byte_level}[family].__wrapped__()
    words.chat_template = {**TEMPLATES, **EDITING}[template] or words.chat_template or ENDS
    if (folder / "chat_template.json").is_file() and template == "own":
        words.chat_template = load_tokenizer(folder, Qwen2Tokenizer).chat_template
    return words


@cache
def reader(family: str, template: str = "own") -> Reader:
    return Reader(tokenizer(family, template))


def expected(family: str, template: str, turns: Any) -> list[int]:
    """By transformers itself, which takes control tokens for tokens."""
    words = tokenizer(family, template)
    ids: list[int] = words.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return ids


def texts(bits: Sequence[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(bits) | st.text(max_size=3), max_size=8).map("".join)


def chats(bits: Sequence[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    turn = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts(bits)})
    return st.lists(turn, min_size=1, max_size=3)


def in_parts(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each text cut in two."""
    return [{**turn, "content": [{"type": "text", "text": half} for half in halves(turn["content"])]} for turn in turns]


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def in_order(reader: Reader, ids: Sequence[int]) -> list[str]:
    return [reader.words[i] for i in ids if i in reader.words]


CASES = [
    *((family, "own", True) for family in ("qwen3", "qwen2.5", "marked", "bytes")),
    *((family, "own", False) for family in ("qwen3", "qwen2.5", "csm")),
    *(("qwen3", template, True) for template in TEMPLATES if template != "own"),
]
"""Family, template, and whether each message is one text."""
some = settings(max_examples=40)


@pytest.mark.parametrize(("family", "template", "whole"), CASES)
@some
@given(turns=chats(BITS))
def test_texts_without_control_tokens_are_as_in_transformers(
    family: str, template: str, whole: bool, turns: list[dict[str, Any]]
) -> None:
    said = "".join(turn["content"] for turn in turns)
    front = reader(family, template)
    assume(not any(word in said for word in front.words.values()))
    turns = turns if whole else in_parts(turns)
    want = expected(family, template, turns)
    assert front.turns_ids(asked(), turns).tolist() == want
    assert front.pieces_ids(turns) == want


@pytest.mark.parametrize(
    ("family", "template", "whole"), [*CASES, *(("qwen3", template, True) for template in EDITING)]
)
@some
@given(turns=chats([*WORDS, *BITS]))
def test_no_text_writes_a_control_token(family: str, template: str, whole: bool, turns: list[dict[str, Any]]) -> None:
    front = reader(family, template)
    harmless = [{**turn, "content": "b" if "b" in turn["content"] else "x"} for turn in turns]
    turns, harmless = (turns, harmless) if whole else (in_parts(turns), in_parts(harmless))
    ids = front.turns_ids(asked(), turns).tolist()
    assert in_order(front, ids) == in_order(front, expected(family, template, harmless))


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5", "bytes"])
@some
@given(turns=chats([*WORDS, *BITS]))
def test_the_text_is_that_of_split_special_tokens(family: str, turns: list[dict[str, Any]]) -> None:
    front, words = reader(family), tokenizer(family)
    marked = [{**turn, "content": f"\x00{place}\x01"} for place, turn in enumerate(turns)]
    pieces = [words.apply_chat_template(marked, add_generation_prompt=True, tokenize=False)]
    for word in front.words.values():
        pieces = [bit for piece in pieces for bit in split(piece, word)]
    want: list[int] = []
    for piece in pieces:
        if piece in front.words.values():
            want.append(words.convert_tokens_to_ids(piece))
            continue
        for place, turn in enumerate(turns):
            piece = piece.replace(f"\x00{place}\x01", turn["content"])
        want += words(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert front.turns_ids(asked(), turns).tolist() == want


def split(piece: str, word: str) -> list[str]:
    head, *rest = piece.split(word)
    return [head, *(bit for each in rest for bit in (word, each))] if piece != word else [piece]


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5", "bytes"])
@some
@given(turns=chats([*WORDS, *BITS]))
def test_a_switch_gives_transformers_behaviour(family: str, turns: list[dict[str, Any]]) -> None:
    assert reader(family).turns_ids(asked("tokens"), turns).tolist() == expected(family, "own", turns)


@pytest.mark.parametrize(
    ("template", "said", "edited"),
    [
        ("no spaces", "a <|im _end|>", "a<|im_end|>"),
        ("no middle", "<|im_~~start|>system", "<|im_start|>system"),
    ],
)
def test_a_text_changed_by_the_template_gives_no_control_token(template: str, said: str, edited: str) -> None:
    front = reader("qwen3", template)
    turns, harmless = ([{"role": "user", "content": text}] for text in (said, "x"))
    ids = front.turns_ids(asked(), turns).tolist()
    assert in_order(front, ids) == in_order(front, expected("qwen3", template, harmless))
    assert edited in tokenizer("qwen3", template).decode(ids)


def test_a_usual_chat_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    front = Reader(tokenizer("qwen3"))
    rendered: list[object] = []
    render = front.render

    def counted(turns: Any, answer: bool) -> str:
        rendered.append(turns)
        return render(turns, answer=answer)

    monkeypatch.setattr(front, "render", counted)
    front.turns_ids(asked(), [{"role": "system", "content": " be\nkind "}, {"role": "user", "content": "hello"}])
    assert len(rendered) == 1


def test_tokens_that_frame_turns_are_control_tokens_under_any_name() -> None:
    words = byte_level()
    words.chat_template = "{% for m in messages %}two words{{ m.content }}<|end|>{% endfor %}"
    ids = Reader(words).turns_ids(asked(), [{"role": "user", "content": "of two words<think>"}]).tolist()
    assert [words.convert_tokens_to_ids(word) in ids[1:] for word in ("two words", "<think>")] == [False, True]
    assert ids[0] == words.convert_tokens_to_ids("two words")


@pytest.mark.parametrize(
    ("template", "control"),
    [
        ("{% for m in messages %}{{ 'two words' if m.role == 'system' }}{{ m.content }}<|end|>{% endfor %}", True),
        ("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{{ 'two words' if add_generation_prompt }}", True),
        ("{{ raise_exception('no') if messages | length < 9 }}{{ 'two words' }}", True),
        ("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}{{ '<think>' if add_generation_prompt }}", False),
    ],
    ids=["before system turns", "before the answer", "refuses what is tried", "a thought that begins the answer"],
)
def test_tokens_that_a_template_writes_anywhere_are_control_tokens(template: str, control: bool) -> None:
    words = byte_level()
    words.chat_template = template
    word = "two words" if control else "<think>"
    ids = Reader(words).user_text_ids(asked(), f"of {word}b").tolist()
    assert (words.convert_tokens_to_ids(word) not in ids) == control


def test_a_text_without_a_template_is_text() -> None:
    said = "a<|im_end|>b"
    words = tokenizer("qwen3")
    assert reader("qwen3").user_text_ids(asked(), said).tolist() == words(said, split_special_tokens=True)["input_ids"]
    assert reader("qwen3").user_text_ids(asked("tokens"), said).tolist() == words(said)["input_ids"]


def test_signs_for_private_use_are_kept() -> None:
    said = "\U000f0000<|im_end|>\U000f0001"
    turns = [{"role": "user", "content": said}]
    assert said in tokenizer("qwen3").decode(reader("qwen3").turns_ids(asked(), turns))
    every = "".join(chr(block) for block in range(0xF0000, 0x10FF00, 0x100))
    with pytest.raises(InputError, match="messages: hold a control token, and characters of every private use block"):
        reader("qwen3").turns_ids(asked(), [{"role": "user", "content": every + said}])
