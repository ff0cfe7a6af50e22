"""From a chat of text to a prompt."""

import sys

import numpy as np
from transformers import AutoTokenizer

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError, InputError
from omni.frontend.base import Chat, Prepared
from omni.frontend.chat import ChatFrontend
from omni.frontend.tokenized import message_texts
from omni.payload import Payload
from omni_ar.inputs import Prompt

_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class TextFrontend(ChatFrontend):
    """Chat template and tokenizer. A tokenizer without a template gets the texts as they are, one after the other."""

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for media and for an empty prompt."""
        texts = message_texts(chat)
        turns = [{"role": message.role, "content": text} for message, text in zip(chat.messages, texts, strict=True)]
        if not any(turn["content"].strip() for turn in turns):
            raise InputError("messages", "hold no text", "give the model something to answer")
        with self._lock:
            if self._tokenizer.chat_template:
                text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            else:
                text = "".join(turn["content"] for turn in turns)
            ids = np.array(self._tokenizer(text)["input_ids"], np.int64)
        prompt = Prompt(
            columns=ids[None], positions=np.arange(len(ids))[None], next_position=len(ids), penalized_ids=np.unique(ids)
        )
        return Prepared(inputs={"text": [Payload(prompt)]}, prompt_tokens=len(ids))


def build(checkpoint: Checkpoint) -> TextFrontend:
    """The checkpoint's front end. Raises CheckpointError if there is no tokenizer."""
    # Without any of them transformers would go on with an empty vocabulary.
    if not any((checkpoint.path / name).is_file() for name in _VOCABULARIES):
        problem = f"{checkpoint.path} has none of {', '.join(_VOCABULARIES)}"
        raise CheckpointError("tokenizer", problem, "download the tokenizer files")
    # The stage refuses a prompt that is too long; transformers would only warn, of a limit that is not the stage's.
    return TextFrontend(AutoTokenizer.from_pretrained(checkpoint.path, model_max_length=sys.maxsize))
