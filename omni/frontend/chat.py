"""Front ends that render chats with a tokenizer's chat template: of text, and of text with sound and pictures."""

import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from omni.errors import CheckpointError, InputError, quoted
from omni.frontend import probe
from omni.frontend.base import AudioPart, Chat, Frontend, ImagePart, Part, TextDecoder, TextPart
from omni.frontend.encoding import ControlTokens, Encoder, Ids
from omni.frontend.hf_files import chat_template
from omni.frontend.hf_vocabulary import hf_vocabulary
from omni.frontend.media import EncodedChat, Media, expand, picture
from omni.frontend.mrope import mrope_positions
from omni.frontend.probe import PREPROCESSOR, blamed_on, check_features, check_vocabulary, check_word
from omni.frontend.template import ChatTemplate, Turns
from omni.frontend.text import IncrementalDecoder
from omni.frontend.vocabulary import Vocabulary

_HARMLESS = "x"
_ROLES = (("system", "user", "assistant", "user"), ("user", "assistant"))
"""Roles of trial chats: with a system turn, which some templates refuse, and without."""
_THOUGHT = re.compile(r"</?think(ing)?>")
"""Words that a template may write where an answer begins, and that still belong to answers: earlier answers hold them."""
_KINDS = {TextPart: "text", AudioPart: "audio", ImagePart: "image"}


class TokenizedFrontend(Frontend):
    """Base of front ends whose threads share one tokenizer of transformers. It writes no text: `ChatFrontend` does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template(tokenizer)
        added = tokenizer.added_tokens_decoder
        framing = self._framing([str(word) for word in added.values() if not word.special])
        words = {i: word for i, word in added.items() if str(word) and (word.special or str(word) in framing)}
        self._encoder = Encoder(tokenizer, framing)
        self._control = ControlTokens(words, self._encoder.normalize)
        self._longest_token = self._encoder.longest_token()

    def check_length(self, chat: Chat) -> None:
        """Raises InputError for texts too long for any prompt of the stage, without tokenizing them."""
        if chat.limit is not None:
            texts = [part.text for message in chat.messages for part in message.content if isinstance(part, TextPart)]
            chat.limit.check_bytes(sum(len(text.encode()) for text in texts), self._longest_token)

    def text_ids(self, text: str, *, add_special_tokens: bool = True) -> Ids:
        """The ids of a text of the family's own, int64 `[T]`. Control tokens in it become their ids, unlike in `user_text_ids`."""
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def user_text_ids(self, chat: Chat, text: str) -> Ids:
        """The ids of a text that the user gives in `chat`, with special tokens. Raises InputError if it is too long."""
        self.check_length(chat)
        if not self._splits_control_tokens(chat, [{"content": text}]):
            return self._encoder.encode(text, limit=chat.limit)
        return self._encoder.encode_pieces([text], limit=chat.limit)

    def turns_ids(self, chat: Chat, turns: Turns, *, answer: bool = True) -> Ids:
        """The ids of a rendered chat. The template writes special tokens. turns: the template's messages, with the texts of `chat`.
        answer: up to where the model's answer begins. Raises InputError for a chat that is too long or refused."""
        self.check_length(chat)
        rendered = self.render(turns, answer=answer)
        if not self._splits_control_tokens(chat, turns, rendered):
            return self._encoder.encode(rendered, add_special_tokens=False, limit=chat.limit)
        pieces = self._control.pieces(turns, rendered, lambda turns: self.render(turns, answer=answer))
        return self._encoder.encode_pieces(pieces, add_special_tokens=False, limit=chat.limit)

    def render(self, turns: Turns, *, answer: bool) -> str:
        """A chat as text, up to where an `answer` begins if one is wanted. Threads do not wait for each other. Raises InputError
        for a chat that the template refuses."""
        return self._required_template.render(turns, answer=answer)

    def check_template(self, placeholders: Mapping[str, int], *, answer: bool) -> Ids:
        """Raises CheckpointError for a chat template that renders short chats wrongly, see `omni.frontend.probe`. placeholders: ids
        by kind of medium. Returns the ids of a chat of text, the shortest prompt."""
        ids = probe.check_template(
            self._required_template, partial(self.text_ids, add_special_tokens=False), placeholders, answer
        )
        self.shortest_prompt = len(ids)
        return ids

    @property
    def _required_template(self) -> ChatTemplate:
        assert self._template is not None, "load_tokenizer refuses a folder without a template, except with chat=False"
        return self._template

    def _splits_control_tokens(self, chat: Chat, turns: Turns, rendered: str | None = None) -> bool:
        """Whether control tokens in users' texts have to be kept from becoming tokens. rendered: by the template, if it is used.
        Raises InputError if this tokenizer cannot do that."""
        if chat.control_tokens == "tokens":
            return False
        supported = self._encoder.supports_pieces
        if not self._control.are_in(turns):
            return supported and rendered is not None and self._control.edited(turns, rendered)
        if not supported:
            problem = "hold a control token, which this checkpoint's tokenizer cannot take as text"
            raise InputError("messages", problem, "remove it", 'set frontend.control_tokens to "tokens"')
        return True

    def _framing(self, words: Sequence[str]) -> frozenset[str]:
        """The `words` that the chat template writes around turns or before an answer, though the tokenizer does not mark them
        as special. If the template renders no trial chat, all that it mentions."""
        if not words or self._template is None:
            return frozenset()
        contents = (_HARMLESS, [{"type": "text", "text": _HARMLESS}])
        chats = [[{"role": role, "content": content} for role in roles] for roles in _ROLES for content in contents]
        rendered = ""
        for turns in chats:
            with suppress(InputError):  # a template may refuse such a chat
                rendered += self.render(turns, answer=turns[-1]["role"] == "user")
        rendered = rendered or str(self._tokenizer.get_chat_template())
        return frozenset(word for word in words if word in rendered and not _THOUGHT.fullmatch(word))


class ChatFrontend(TokenizedFrontend):
    """Base of front ends of models that write text."""

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
        """The prompt int64 `[T]`, a placeholder for each medium, up to where the answer begins. Raises InputError if too long."""
        turns = [{"role": each.role, "content": [_part(part) for part in each.content]} for each in chat.messages]
        return self.turns_ids(chat, turns)

    def chosen_voice(self, chat: Chat, mute: str) -> str | None:
        """The voice of the answer, in any capitalization; None if only text is wanted. mute: why a checkpoint without voices has
        none. Raises InputError for an unknown voice, and for audio without voices."""
        if "audio" not in chat.modalities:
            return None
        if not self.voices:
            problem = f"ask for audio, which this checkpoint cannot give: {mute}"
            raise InputError("modalities", problem, 'ask for "text" only or use another checkpoint')
        known = {name.lower(): name for name in self.voices}
        if chat.voice is not None and chat.voice.lower() not in known:
            raise InputError("voice", f"{quoted(chat.voice)} is unknown", f"use one of {', '.join(self.voices)}")
        return known[(chat.voice or self.voices[0]).lower()]


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a family's config that media need. hf: transformers' config, with the text model's and its encoders' as
    `thinker_config`. audio_token, image_token: ids of placeholders. The others: as of `mrope_positions`, and of the text model."""

    hf: Any
    audio_token: int
    image_token: int
    spatial_merge_size: int
    position_id_per_seconds: int
    thinker_vocab_size: int


class MultimodalFrontend(ChatFrontend):
    """Base of front ends for sound and pictures, and text models with multimodal rotary positions. tokenizer, images: a tokenizer,
    which names the placeholders, and an image processor of transformers."""

    def __init__(self, config: MediaConfig, tokenizer: Any, images: Any) -> None:
        super().__init__(tokenizer)
        self._media_config = config
        self._images = images

    @abstractmethod
    def sounds(self, parts: Sequence[AudioPart]) -> list[Media]:
        """All clips of a request. Raises InputError for a clip without usable sound."""

    def check(self) -> Ids:
        """Raises CheckpointError, naming the file, for files that would fail requests. Returns the ids of a chat of text."""
        words, config = self._tokenizer, self._media_config
        merge = config.spatial_merge_size
        check_vocabulary(words, config.thinker_vocab_size)
        check_word(words, "audio_token", lambda: words.audio_token, config.audio_token)
        check_word(words, "image_token", lambda: words.image_token, config.image_token)
        check_word(words, "video_token", lambda: words.video_token)
        ids = self.check_template({"audio": config.audio_token, "image": config.image_token}, answer=True)
        if self._images.merge_size != merge:
            problem = f"is {self._images.merge_size}, beside {merge} of config.json's vision_config.spatial_merge_size"
            raise CheckpointError(f"{PREPROCESSOR}: merge_size", problem, "use the files of one model")
        with blamed_on(PREPROCESSOR):
            pixels = picture(self._images, probe.picture(), merge).tensors["pixels"]
            features = self.sounds([probe.sound(self.sample_rate)])[0].tensors["features"]
        hf, vision = config.hf.thinker_config, config.hf.thinker_config.vision_config
        values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        check_features(PREPROCESSOR, pixels, values, 1, "thinker_config.vision_config")
        bins = hf.audio_config.num_mel_bins
        check_features(PREPROCESSOR, features, bins, 0, "thinker_config.audio_config.num_mel_bins")
        return ids

    def encode(self, chat: Chat) -> EncodedChat:
        """Raises InputError for an empty prompt, placeholders in texts and unusable media."""
        self.check_length(chat)
        words, config = self._tokenizer, self._media_config
        merge = config.spatial_merge_size
        check_content(chat, (words.audio_token, words.image_token, words.video_token))
        parts = [part for message in chat.messages for part in message.content]
        sounds = self.sounds([part for part in parts if isinstance(part, AudioPart)])
        pictures = [picture(self._images, part, merge) for part in parts if isinstance(part, ImagePart)]
        ids, positions_by_token = expand(
            self.chat_ids(chat), {config.audio_token: sounds, config.image_token: pictures}
        )
        positions, next_position = mrope_positions(
            ids,
            [each.grid for each in pictures],
            image_token=config.image_token,
            merge=merge,
            per_second=config.position_id_per_seconds,
        )
        positions_by_kind = {
            "audio": positions_by_token[config.audio_token],
            "image": positions_by_token[config.image_token],
        }
        return EncodedChat(ids, positions, next_position, {"audio": sounds, "image": pictures}, positions_by_kind)


def check_content(chat: Chat, placeholders: Sequence[str]) -> None:
    """Raises InputError for a chat without content, and for placeholders in texts where control tokens in texts are tokens."""
    parts = [part for message in chat.messages for part in message.content]
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
        raise InputError("messages", "hold no text, sound or picture", "give the model something to answer")
    for index, message in enumerate(chat.messages if chat.control_tokens == "tokens" else ()):
        # Adjacent texts are tokenized as one.
        text = "".join(part.text if isinstance(part, TextPart) else "\n" for part in message.content)
        for word in placeholders:
            if word in text:
                problem = f"holds {word!r}, a placeholder of media"
                raise InputError(f"messages[{index}].content", problem, "remove it or attach the media as a part")


def message_texts(chat: Chat) -> list[str]:
    """The text of each message, its parts joined. Raises InputError for sound and pictures."""
    for part in (part for message in chat.messages for part in message.content):
        if not isinstance(part, TextPart):
            raise InputError(part.field, "is sound or a picture", "give this model text only")
    return ["".join(part.text for part in message.content if isinstance(part, TextPart)) for message in chat.messages]


def _part(part: Part) -> dict[str, str]:
    kind = _KINDS[type(part)]
    # Templates ask for the type, or for a key of its name.
    return {"type": kind, kind: part.text if isinstance(part, TextPart) else ""}
