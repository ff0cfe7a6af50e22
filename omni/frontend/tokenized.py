"""Texts and their token ids, by a tokenizer of transformers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omni.errors import InputError
from omni.frontend.base import Chat, Frontend, Part, TextPart
from omni.frontend.chat_template import chat_template
from omni.frontend.encoding import ControlTokens, Encoder, Ids
from omni.frontend.probe import check_template
from omni.frontend.template import Turns

_HARMLESS = "x"
_ROLES = (("system", "user", "assistant", "user"), ("user", "assistant"))
"""Of chats that are tried: with a system turn, which some templates refuse, and without."""
_THOUGHT = re.compile(r"</?think(ing)?>")
"""Words that a template may write where an answer begins, and that are part of the answer all the same: earlier ones hold them."""


class TokenizedFrontend(Frontend):
    """What front ends share whose threads use one tokenizer of transformers. It gives no text: `ChatFrontend` does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template(tokenizer)
        added = tokenizer.added_tokens_decoder
        framing = self._framing([str(word) for word in added.values() if not word.special])
        words = {i: word for i, word in added.items() if str(word) and (word.special or str(word) in framing)}
        self._encoder = Encoder(tokenizer, framing)
        self._control = ControlTokens(words, self._encoder.normal)
        self._longest_token = self._encoder.longest_token()

    def check_length(self, chat: Chat) -> None:
        """Raises InputError for texts of which no prompt can be short enough for its stage. Reads none of them."""
        if chat.limit is not None:
            texts = [part.text for message in chat.messages for part in message.content if isinstance(part, TextPart)]
            chat.limit.check_bytes(sum(len(text.encode()) for text in texts), self._longest_token)

    def text_ids(self, text: str, *, bare: bool = False) -> Ids:
        """The ids of a text, int64 `[T]`, with what the tokenizer puts around every text, unless it is to be `bare`. What it holds
        of control tokens stands for their ids: `said_ids` and `chat_ids` are for what users write."""
        return self._encoder.encode(text, bare=bare)

    def said_ids(self, chat: Chat, text: str) -> Ids:
        """The same of the text that a user gives in `chat`. Raises InputError if it is too long."""
        self.check_length(chat)
        turns = [{"content": text}]
        if not self._are_text(chat, turns):
            return self._encoder.encode(text, limit=chat.limit)
        return self._encoder.encode_pieces([text], limit=chat.limit)

    def turns_ids(self, chat: Chat, turns: Turns, *, answer: bool = True) -> Ids:
        """The same of a chat that the template lays out. What begins and ends a text is the template's: the tokenizer adds nothing.

        turns: what the template gets, the texts of `chat` among it. answer: up to where the model's answer begins.
        Raises InputError for a chat that is too long, or that the template refuses.
        """
        self.check_length(chat)
        laid_out = self.render(turns, answer=answer)
        if not self._are_text(chat, turns, laid_out):
            return self._encoder.encode(laid_out, bare=True, limit=chat.limit)
        pieces = self._control.laid_out(turns, laid_out, lambda turns: self.render(turns, answer=answer))
        return self._encoder.encode_pieces(pieces, bare=True, limit=chat.limit)

    def _are_text(self, chat: Chat, turns: Turns, laid_out: str | None = None) -> bool:
        """Whether the texts hold control tokens, which are to be text, or may in the chat as the template has `laid_out` it. Raises
        InputError if that cannot be done."""
        if chat.control_tokens == "tokens":
            return False
        tells = self._encoder.tells_words_from_text
        if not self._control.are_in(turns):
            return tells and laid_out is not None and self._control.edited(turns, laid_out)
        if not tells:
            problem = "hold a control token, which this checkpoint's tokenizer cannot take as text"
            raise InputError("messages", problem, 'remove it, or set frontend.control_tokens to "tokens"')
        return True

    def _framing(self, words: Sequence[str]) -> frozenset[str]:
        """Those of `words` that the chat template writes around turns or where an answer begins, though the tokenizer does not call
        them special. All that it names, if it lays out none of the chats that are tried."""
        if not words or self._template is None:
            return frozenset()
        contents = (_HARMLESS, [{"type": "text", "text": _HARMLESS}])
        chats = [[{"role": role, "content": said} for role in roles] for roles in _ROLES for said in contents]
        laid_out = "".join(map(self._probe, chats)) or str(self._tokenizer.get_chat_template())
        return frozenset(word for word in words if word in laid_out and not _THOUGHT.fullmatch(word))

    def _probe(self, turns: Turns) -> str:
        try:
            return self.render(turns, answer=turns[-1]["role"] == "user")
        except InputError:  # a template may refuse such a chat
            return ""

    def check_template(self, placeholders: Mapping[str, int], *, answer: bool) -> Ids:
        """Raises CheckpointError for a chat template that lays out short chats wrongly, as `omni.frontend.probe` has it.

        placeholders: ids by kind of medium. Returns the ids of a chat of text.
        """
        assert self._template is not None, (
            "load_tokenizer refuses a folder without one, unless it is told that there are no chats"
        )
        return check_template(self._template, lambda text: self.text_ids(text, bare=True), placeholders, answer)

    def render(self, turns: Turns, *, answer: bool) -> str:
        """A chat as the checkpoint's template lays it out, up to where an `answer` begins if one is wanted. Threads do not wait for
        each other. Raises InputError for a chat that the template refuses."""
        assert self._template is not None, (
            "load_tokenizer refuses a folder without one, unless it is told that there are no chats"
        )
        return self._template.render(turns, answer=answer)


def message_texts(chat: Chat) -> list[str]:
    """What each message says, its parts put together. Raises InputError for sound and pictures."""
    return [_text(message.content) for message in chat.messages]


def _text(content: tuple[Part, ...]) -> str:
    for part in content:
        if not isinstance(part, TextPart):
            raise InputError(part.field, "is sound or a picture", "give this model text only")
    return "".join(part.text for part in content if isinstance(part, TextPart))
