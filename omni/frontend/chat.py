"""Chats that a tokenizer's chat template lays out, with a placeholder for each piece of media."""

import threading
from collections.abc import Sequence
from typing import Any

from omni.errors import InputError, quoted
from omni.frontend.base import AudioPart, Chat, ImagePart, TextDecoder, TextPart
from omni.frontend.encoding import Ids
from omni.frontend.hf_vocabulary import hf_vocabulary
from omni.frontend.text import IncrementalDecoder
from omni.frontend.tokenized import TokenizedFrontend
from omni.frontend.vocabulary import Vocabulary

_KINDS = {TextPart: "text", AudioPart: "audio", ImagePart: "image"}


class ChatFrontend(TokenizedFrontend):
    """What front ends of models that write share, with a tokenizer of transformers: with a chat template, for `chat_ids`."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()

    def text_decoder(self) -> TextDecoder:
        return IncrementalDecoder(self._tokenizer)

    def vocabulary(self) -> Vocabulary | None:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = hf_vocabulary(self._tokenizer, self._encoder)
            return self._vocabulary

    def chat_ids(self, chat: Chat) -> Ids:
        """The prompt int64 `[T]`, with one placeholder for each piece of media, up to where the answer begins.

        Raises InputError for a prompt that is too long.
        """
        turns = [{"role": each.role, "content": [_part(part) for part in each.content]} for each in chat.messages]
        return self.turns_ids(chat, turns)

    def chosen_voice(self, chat: Chat, mute: str) -> str | None:
        """The voice that answers, however its name is capitalized; None if text alone is wanted.

        mute: why a checkpoint without voices has none. Raises InputError for an unknown voice, and for audio where there is none.
        """
        if "audio" not in chat.modalities:
            return None
        if not self.voices:
            problem = f"ask for audio, which this checkpoint cannot give: {mute}"
            raise InputError("modalities", problem, 'ask for "text" only or use another checkpoint')
        known = {name.lower(): name for name in self.voices}
        if chat.voice is not None and chat.voice.lower() not in known:
            raise InputError("voice", f"{quoted(chat.voice)} is unknown", f"use one of {', '.join(self.voices)}")
        return known[(chat.voice or self.voices[0]).lower()]


def check_content(chat: Chat, reserved: Sequence[str]) -> None:
    """Raises InputError for a chat without content; where control tokens in texts are tokens, for words of media too."""
    parts = [part for message in chat.messages for part in message.content]
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
        raise InputError("messages", "hold no text, sound or picture", "give the model something to answer")
    for index, message in enumerate(chat.messages if chat.control_tokens == "tokens" else ()):
        # Neighbouring texts are read as one.
        text = "".join(part.text if isinstance(part, TextPart) else "\n" for part in message.content)
        for word in reserved:
            if word in text:
                problem = f"holds {word!r}, which stands for media"
                raise InputError(f"messages[{index}].content", problem, "remove it or attach the media as a part")


def _part(part: TextPart | AudioPart | ImagePart) -> dict[str, str]:
    kind = _KINDS[type(part)]
    # Templates ask for the type, or for a key of its name.
    return {"type": kind, kind: part.text if isinstance(part, TextPart) else ""}
