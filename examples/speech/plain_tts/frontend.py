"""From a message to the talker's prompt."""

import numpy as np
from transformers import PreTrainedTokenizerFast

from omni import InputError
from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat, Prepared
from omni.frontend.chat import TokenizedFrontend, message_texts
from omni.frontend.hf_files import load_tokenizer
from omni.payload import Payload
from omni_ar.inputs import Prompt
from plain_tts.config import TtsConfig, read_config


class TtsFrontend(TokenizedFrontend):
    """One message, which is spoken word for word."""

    def __init__(self, config: TtsConfig, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(tokenizer)
        self._config = config

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for media, several messages, and messages without text or with the
        reserved word."""
        texts = message_texts(chat)
        if len(texts) != 1:
            raise InputError("messages", f"are {len(texts)}", "give one: the text to speak")
        if not texts[0].strip():
            raise InputError("messages[0].content", "holds no text", "give the text to speak")
        ids = self.user_text_ids(chat, texts[0])
        if self._config.speak_token in ids:
            raise InputError("messages[0].content", "holds a word that is reserved", "remove it")
        prompt = Prompt.of(np.append(ids, self._config.speak_token), penalized=False)
        return Prepared(inputs={"talker": [Payload(prompt)]}, prompt_tokens=prompt.length)


def build(checkpoint: Checkpoint) -> TtsFrontend:
    tokenizer = load_tokenizer(checkpoint.path, PreTrainedTokenizerFast, chat=False)
    return TtsFrontend(read_config(checkpoint), tokenizer)
