"""From a chat to token ids, and back to text."""

from transformers import PreTrainedTokenizerFast

from omni import InputError
from omni.checkpoint import Checkpoint
from omni.frontend.base import Chat, Prepared
from omni.frontend.chat import ChatFrontend, message_texts
from omni.frontend.hf_files import load_tokenizer
from omni.payload import Payload
from omni_ar.inputs import Prompt


class PocketFrontend(ChatFrontend):
    """The texts of all messages, one after the other. For a chat template see `turns_ids`."""

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for pictures, sound, and an empty prompt."""
        text = "".join(message_texts(chat))
        if not text.strip():
            raise InputError("messages", "hold no text", "give the model something to continue")
        prompt = Prompt.of(self.user_text_ids(chat, text))
        return Prepared(inputs={"text": [Payload(prompt)]}, prompt_tokens=prompt.length)


def build(checkpoint: Checkpoint) -> PocketFrontend:
    return PocketFrontend(load_tokenizer(checkpoint.path, PreTrainedTokenizerFast, chat=False))
