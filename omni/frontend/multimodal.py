"""Chats with sound and pictures, for text models with multimodal rotary positions."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from omni.frontend import probe
from omni.frontend.base import AudioPart, Chat, ImagePart
from omni.frontend.chat import ChatFrontend, check_content
from omni.frontend.encoding import Ids
from omni.frontend.media import Media, expand, picture
from omni.frontend.mrope import mrope_positions
from omni.frontend.probe import PREPROCESSOR, blamed_on, check_features, check_vocabulary, check_word
from omni.frontend.read import Read


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """audio_token, image_token: ids of placeholders. merge, per_second: as `mrope_positions` has them. values: of a patch of a
    picture. bins: of a spectrum. vocab_size: of the text model."""

    audio_token: int
    image_token: int
    merge: int
    per_second: int
    values: int
    bins: int
    vocab_size: int


class MediaConfig(Protocol):
    """What a family's config says."""

    @property
    def audio_token(self) -> int: ...
    @property
    def image_token(self) -> int: ...
    @property
    def spatial_merge_size(self) -> int: ...
    @property
    def position_id_per_seconds(self) -> int: ...
    @property
    def thinker_vocab_size(self) -> int: ...


def media_layout(config: MediaConfig, hf: Any) -> MediaLayout:
    """hf: transformers' config of the text model and the towers before it."""
    vision = hf.vision_config
    return MediaLayout(
        audio_token=config.audio_token,
        image_token=config.image_token,
        merge=config.spatial_merge_size,
        per_second=config.position_id_per_seconds,
        values=vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
        bins=hf.audio_config.num_mel_bins,
        vocab_size=config.thinker_vocab_size,
    )


class MultimodalFrontend(ChatFrontend):
    """tokenizer, images: a tokenizer and an image processor of transformers; the tokenizer names the placeholders."""

    def __init__(self, layout: MediaLayout, tokenizer: Any, images: Any) -> None:
        super().__init__(tokenizer)
        self._layout = layout
        self._images = images

    @abstractmethod
    def sounds(self, parts: Sequence[AudioPart]) -> list[Media]:
        """All clips of a request. Raises InputError for one that cannot be heard."""

    def check(self) -> Ids:
        """Raises CheckpointError, naming the file, for a tokenizer, a template or processors that would fail requests.

        Returns the ids of a chat of text.
        """
        words, layout = self._tokenizer, self._layout
        check_vocabulary(words, layout.vocab_size)
        check_word(words, "audio_token", lambda: words.audio_token, layout.audio_token)
        check_word(words, "image_token", lambda: words.image_token, layout.image_token)
        check_word(words, "video_token", lambda: words.video_token)
        placeholders = {"audio": layout.audio_token, "image": layout.image_token}
        ids = self.check_template(placeholders, answer=True)
        with blamed_on(PREPROCESSOR):
            seen = picture(self._images, probe.picture(), layout.merge).tensors["pixels"]
            heard = self.sounds([probe.sound(self.sample_rate)])[0].tensors["features"]
        check_features(PREPROCESSOR, seen, layout.values, 1, "thinker_config.vision_config")
        check_features(PREPROCESSOR, heard, layout.bins, 0, "thinker_config.audio_config.num_mel_bins")
        return ids

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
