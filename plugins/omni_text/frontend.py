"""Converts a chat of text to a prompt."""

from transformers import AutoTokenizer

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import Chat, Prepared
from omni.frontend.chat import ChatFrontend, message_texts
from omni.frontend.hf_files import load_tokenizer
from omni.frontend.probe import check_vocabulary
from omni.payload import Payload
from omni_ar.inputs import Prompt
from omni_text.config import read_config


class TextFrontend(ChatFrontend):
    """Chat template and tokenizer. Without a template the prompt is the concatenated texts."""

    takes_raw_prompts = True

    def check(self, vocab_size: int) -> None:
        """Raises CheckpointError, naming the file, for a tokenizer or a template that would fail requests."""
        check_vocabulary(self._tokenizer, vocab_size)
        if self._tokenizer.chat_template:
            self.check_template({}, answer=True)

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for media and for an empty prompt."""
        texts = message_texts(chat)
        if not any(text.strip() for text in texts):
            raise InputError("messages", "hold no text", "give the model something to answer")
        if self._tokenizer.chat_template and not chat.raw:
            turns = [{"role": each.role, "content": text} for each, text in zip(chat.messages, texts, strict=True)]
            ids = self.turns_ids(chat, turns)
        else:
            ids = self.user_text_ids(chat, "".join(texts))
        prompt = Prompt.of(ids)
        return Prepared(inputs={"text": [Payload(prompt)]}, prompt_tokens=prompt.length)


def build(checkpoint: Checkpoint) -> TextFrontend:
    """The checkpoint's front end; a chat template is optional. Raises CheckpointError for files that are missing or wrong."""
    frontend = TextFrontend(load_tokenizer(checkpoint.path, AutoTokenizer, chat=False))
    frontend.check(read_config(checkpoint).vocab_size)
    return frontend
