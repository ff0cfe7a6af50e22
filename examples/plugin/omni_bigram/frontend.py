"""From a chat to bytes and back."""

import codecs
from collections.abc import Sequence

import numpy as np

from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat, Frontend, Prepared, TextDecoder
from omni.frontend.chat import message_texts
from omni.frontend.vocabulary import Vocabulary
from omni.payload import Payload
from omni_ar.inputs import Prompt


class Utf8Decoder:
    """Keeps the bytes of an unfinished character back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


VOCABULARY = Vocabulary(tokens=tuple(bytes([byte]) for byte in range(256)))


class ByteFrontend(Frontend):
    """The texts of all messages, one after the other, as they are."""

    def text_decoder(self) -> TextDecoder:
        return Utf8Decoder()

    def vocabulary(self) -> Vocabulary:
        return VOCABULARY

    def prepare(self, chat: Chat) -> Prepared:
        text = "".join(message_texts(chat))
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return Prepared(inputs={"writer": [Payload(Prompt.of(ids))]}, prompt_tokens=len(ids))


def build(checkpoint: Checkpoint) -> ByteFrontend:
    return ByteFrontend()
