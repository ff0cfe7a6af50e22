"""Chats with sound and pictures, for text models with multimodal rotary positions."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omni.frontend.base import AudioPart, Chat, ImagePart
from omni.frontend.chat import ChatFrontend, check_content
from omni.frontend.media import Media, expand, picture
from omni.frontend.mrope import mrope_positions
from omni.frontend.read import Read


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """audio_token, image_token: ids of placeholders. merge, per_second: as `mrope_positions` has them."""

    audio_token: int
    image_token: int
    merge: int
    per_second: int


class MultimodalFrontend(ChatFrontend):
    """tokenizer, images: a tokenizer and an image processor of transformers; the tokenizer names the placeholders."""

    def __init__(self, layout: MediaLayout, tokenizer: Any, images: Any) -> None:
        super().__init__(tokenizer)
        self._layout = layout
        self._images = images

    @abstractmethod
    def sounds(self, parts: Sequence[AudioPart]) -> list[Media]:
        """All clips of a request. Raises InputError for one that cannot be heard."""

    def read(self, chat: Chat) -> Read:
        """Raises InputError for an empty prompt, reserved words and media that cannot be seen or heard."""
        self.check_length(chat)
        words, layout = self._tokenizer, self._layout
        check_content(chat, (words.audio_token, words.image_token, words.video_token))
        parts = [part for message in chat.messages for part in message.content]
        sounds = self.sounds([part for part in parts if isinstance(part, AudioPart)])
        pictures = [picture(self._images, part, layout.merge) for part in parts if isinstance(part, ImagePart)]
        ids, places = expand(self.chat_ids(chat), {layout.audio_token: sounds, layout.image_token: pictures})
        positions, after = mrope_positions(
            ids,
            [each.grid for each in pictures],
            image_token=layout.image_token,
            merge=layout.merge,
            per_second=layout.per_second,
        )
        places_by_kind = {"audio": places[layout.audio_token], "image": places[layout.image_token]}
        return Read(ids, positions, after, {"audio": sounds, "image": pictures}, places_by_kind)
