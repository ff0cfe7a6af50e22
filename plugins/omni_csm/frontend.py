"""Converts the turns of a conversation to stage inputs. Each turn is a speaker's text and sound; the stages generate
the last turn's sound."""

from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerFast

from omni.checkpoint import Checkpoint
from omni.errors import InputError, counted, quoted
from omni.frontend.base import AudioPart, Chat, ImagePart, Message, Prepared, TextPart
from omni.frontend.chat import TokenizedFrontend
from omni.frontend.hf_files import load_tokenizer
from omni.frontend.media import Media, expand
from omni.frontend.probe import check_vocabulary
from omni.media import content_hash
from omni.payload import Payload
from omni_ar.inputs import Prompt, placeholders_of
from omni_csm.config import SAMPLE_RATE, CsmConfig, read_config
from omni_encoder.inputs import media_items


class CsmFrontend(TokenizedFrontend):
    """Chat template and prompt.

    Speakers are numbers, given as a message's `name`. `voice` is the speaker of the last message. Assistant turns without a name
    are `voice`'s too, user turns without one are speaker 0's, or 1's if `voice` is 0.
    """

    voices = ("0", "1")
    sample_rate = SAMPLE_RATE
    takes_names = True

    def __init__(self, config: CsmConfig, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._config = config
        self._reserved = str(tokenizer.convert_ids_to_tokens(config.audio_token))

    def check(self) -> None:
        """Raises CheckpointError, naming the file, for a tokenizer or a template that would fail requests."""
        check_vocabulary(self._tokenizer, self._config.text_vocab_size)
        self.check_template({"audio": self._config.audio_token}, answer=False)

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for invalid speakers, placeholders in texts, and turns without their text or sound."""
        self.check_length(chat)
        if chat.control_tokens == "tokens":
            self._check_reserved(chat)
        *turns, last = chat.messages
        field = f"messages[{len(turns)}].name"
        voice = _speaker(chat.voice or last.name or self.voices[0], "voice" if chat.voice else field)
        if last.name not in (None, voice):
            remedy = "give one of them only"
            raise InputError(field, f"is {quoted(last.name)}, but voice is {quoted(voice)}", remedy)
        by_role = {"user": self.voices[voice == self.voices[0]]}
        conversation = [
            {
                "role": _speaker(message.name or by_role.get(message.role, voice), f"messages[{index}].name"),
                "content": self._parts(message, f"messages[{index}].content", True),
            }
            for index, message in enumerate(turns)
        ]
        conversation.append({"role": voice, "content": self._parts(last, f"messages[{len(turns)}].content", False)})
        sounds = [self._sound(part) for message in turns for part in message.content if isinstance(part, AudioPart)]
        rendered_T = self.turns_ids(chat, conversation, answer=False)
        token = self._config.audio_token
        ids, places = expand(rendered_T, {token: sounds})
        segments = placeholders_of({"audio": sounds}, {"audio": places[token]})
        prompt = msgspec.structs.replace(Prompt.of(ids, penalized=False), placeholders=segments)
        inputs = {"backbone": [Payload(prompt)]} | media_items({"audio_encoder": sounds})
        return Prepared(inputs, prompt_tokens=prompt.length)

    def _parts(self, message: Message, field: str, with_sound: bool) -> list[dict[str, str]]:
        """A turn's parts for the chat template, text first. with_sound: whether the turn must have its sound."""
        text = "".join(part.text for part in message.content if isinstance(part, TextPart))
        sounds = sum(isinstance(part, AudioPart) for part in message.content)
        if not text.strip():
            raise InputError(field, "holds no text", "give the text to speak")
        for part in message.content:
            if isinstance(part, ImagePart):
                raise InputError(part.field, "is a picture, which this model does not take", "leave it out")
        if sounds != with_sound:
            remedy = "give the text and its sound" if with_sound else "give the text alone: its sound is generated"
            raise InputError(field, f"holds {counted(sounds, 'sound')} beside its text", remedy)
        return [{"type": "text", "text": text}, *[{"type": "audio", "audio": ""}] * sounds]

    def _check_reserved(self, chat: Chat) -> None:
        for index, message in enumerate(chat.messages):
            text = "".join(part.text for part in message.content if isinstance(part, TextPart))
            if self._reserved in text:
                problem = f"holds {self._reserved!r}, a placeholder of sound"
                raise InputError(f"messages[{index}].content", problem, "remove it")

    def _sound(self, part: AudioPart) -> Media:
        length = -(-len(part.samples) // self._config.mimi.frame_size)
        return Media({"samples": torch.from_numpy(part.samples)}, length, content_hash(part.samples), field=part.field)


def _speaker(name: str, field: str) -> str:
    if not (name.isascii() and name.isdigit()):
        raise InputError(field, f"{quoted(name)} is not a speaker", 'give a number, such as "0"')
    return name


def build(checkpoint: Checkpoint) -> CsmFrontend:
    """The checkpoint's front end. Raises CheckpointError for files that are missing or wrong."""
    frontend = CsmFrontend(read_config(checkpoint), load_tokenizer(checkpoint.path, PreTrainedTokenizerFast))
    frontend.check()
    return frontend
