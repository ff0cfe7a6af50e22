"""From turns of a conversation to stage inputs: each is a speaker's text and its sound, and of the last the sound is to be made."""

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import CsmProcessor

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import AudioPart, Chat, Frontend, Message, Prepared, TextPart
from omni.media import content_hash
from omni.payload import Payload
from omni.quiet import quiet
from omni_ar.inputs import Prompt, SegmentSlot
from omni_csm.config import SAMPLE_RATE, CsmConfig, read_config
from omni_encoder.inputs import MediaItem


class CsmFrontend(Frontend):
    """Chat template and prompt layout.

    Speakers are numbers, and a message's `name` is one. `voice` says the last message. Turns without a name are `voice`'s own where
    they are the assistant's, and where they are the user's those of another: of speaker 0, or of 1 where 0 speaks.
    """

    voices = ("0", "1")
    sample_rate = SAMPLE_RATE
    takes_names = True

    def __init__(self, config: CsmConfig, processor: Any) -> None:
        self._config = config
        self._processor = processor
        self._reserved = tuple(str(token) for token in processor.tokenizer.added_tokens_decoder.values())
        # transformers' fast tokenizers are not safe to share between threads while their padding state changes.
        self._lock = threading.Lock()

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for what is no speaker, reserved words, and turns that lack their text or their sound."""
        *turns, last = chat.messages
        field = f"messages[{len(turns)}].name"
        voice = _speaker(chat.voice or last.name or self.voices[0], "voice" if chat.voice else field)
        if last.name not in (None, voice):
            remedy = "give one of them only"
            raise InputError(field, f"is {last.name!r}, but voice is {voice!r}", remedy)
        by_role = {"user": self.voices[voice == self.voices[0]]}
        conversation = [
            {
                "role": _speaker(message.name or by_role.get(message.role, voice), f"messages[{index}].name"),
                "content": self._parts(message, f"messages[{index}].content", True),
            }
            for index, message in enumerate(turns)
        ]
        conversation.append({"role": voice, "content": self._parts(last, f"messages[{len(turns)}].content", False)})
        clips = [part.samples for message in turns for part in message.content if isinstance(part, AudioPart)]
        items = [self._item(index, clip) for index, clip in enumerate(clips)]
        with self._lock:
            text = self._processor.apply_chat_template(conversation, tokenize=False)
            ids = np.asarray(self._processor.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        prompt = self._prompt(ids, items)
        heard = [Payload(item, {"samples": torch.from_numpy(clip)}) for item, clip in zip(items, clips, strict=True)]
        inputs = {"backbone": [Payload(prompt)]} | ({"audio_encoder": heard} if heard else {})
        return Prepared(inputs, prompt_tokens=prompt.length)

    def _prompt(self, ids: NDArray[np.int64], sounds: list[MediaItem]) -> Prompt:
        """Each placeholder is repeated for as many frames as its sound has."""
        token, lengths = self._config.audio_token, [sound.length for sound in sounds]
        counts = np.ones(len(ids), np.int64)
        counts[ids == token] = lengths
        ids = np.repeat(ids, counts)
        places = np.split(np.flatnonzero(ids == token), np.cumsum(lengths)[:-1]) if sounds else []
        slots = [
            SegmentSlot(name="audio", index=sound.index, positions=part, key=sound.key)
            for sound, part in zip(sounds, places, strict=True)
        ]
        positions = np.arange(len(ids))[None]
        return Prompt(columns=ids[None], positions=positions, next_position=len(ids), segments=tuple(slots))

    def _parts(self, message: Message, field: str, heard: bool) -> list[dict[str, str]]:
        """As the chat template wants them, text first. heard: whether the turn's sound is given."""
        text = "".join(part.text for part in message.content if isinstance(part, TextPart))
        sounds = sum(isinstance(part, AudioPart) for part in message.content)
        if not text.strip():
            raise InputError(field, "holds no text", "give what is said")
        if sounds != heard or len(message.content) != sounds + sum(isinstance(p, TextPart) for p in message.content):
            remedy = "give the text and its sound" if heard else "give the text alone: the sound is made"
            raise InputError(field, f"holds {sounds} sounds beside its text, or a picture", remedy)
        for word in self._reserved:
            if word in text:
                raise InputError(field, f"holds {word!r}, which is reserved", "remove it")
        return [{"type": "text", "text": text}, *[{"type": "audio", "audio": ""}] * sounds]

    def _item(self, index: int, clip: NDArray[np.float32]) -> MediaItem:
        length = -(-len(clip) // self._config.mimi.frame_size)
        return MediaItem(index=index, key=content_hash(clip), batch_key=0, length=length)


def _speaker(name: str, field: str) -> str:
    if not (name.isascii() and name.isdigit()):
        raise InputError(field, f"{name!r} is no speaker", 'give a number, such as "0"')
    return name


def build(checkpoint: Checkpoint) -> CsmFrontend:
    """The checkpoint's front end."""
    with quiet():
        processor = CsmProcessor.from_pretrained(checkpoint.path, local_files_only=True)
    return CsmFrontend(read_config(checkpoint), processor)
