"""From a chat to stage inputs."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omni.checkpoint import Checkpoint
from omni.errors import InputError
from omni.frontend.base import AudioPart, Chat, ImagePart, Prepared, TextDecoder, TextPart
from omni.frontend.hf_vocabulary import hf_vocabulary
from omni.frontend.text import IncrementalDecoder
from omni.frontend.vocabulary import Vocabulary
from omni.media import content_hash
from omni.payload import Payload
from omni_ar.inputs import Prompt, SegmentSlot
from omni_encoder.inputs import MediaItem
from omni_qwen3_omni.audio_plan import encoded_frames, padded_chunk
from omni_qwen3_omni.config import OmniConfig, read_config
from omni_qwen3_omni.mrope import Grid, mrope_positions
from omni_qwen3_omni.processor import load_processor
from omni_qwen3_omni.talker_prompt import prefix_key, talker_args

_MAX_PROPORTION = 200
"""Long to short side of a picture that the processor takes."""


class OmniFrontend:
    """Chat template, feature extraction and prompt layout."""

    def __init__(self, config: OmniConfig, processor: Any) -> None:
        self._config = config
        self._processor = processor
        # transformers' fast tokenizers are not safe to share between threads while their padding state changes.
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(self._config.talker.speakers) if self._config.talker is not None else ()

    def text_decoder(self) -> TextDecoder:
        return IncrementalDecoder(self._processor.tokenizer)

    def vocabulary(self) -> Vocabulary | None:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = hf_vocabulary(self._processor.tokenizer, self._lock)
            return self._vocabulary

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for an empty prompt, reserved words, an unknown voice, or audio of a model that only writes."""
        self._check(chat)
        voice = self._voice(chat)
        parts = [part for message in chat.messages for part in message.content]
        audio_items = self._audio_items([part for part in parts if isinstance(part, AudioPart)])
        image_items, grids = self._image_items([part for part in parts if isinstance(part, ImagePart)])
        ids = self._expand(self._tokens(chat), audio_items, image_items)
        positions, next_position = self._positions(ids, grids)
        segments = self._segments(ids, audio_items, image_items)
        talker = None
        if voice is not None:
            read = prefix_key(ids, positions, segments)
            talker = talker_args(self._config, ids, grids, voice, read)
        prompt = Prompt(
            columns=ids[None],
            positions=positions,
            next_position=next_position,
            segments=segments,
            payload_positions=talker.hidden_from if talker is not None else np.empty(0, np.int64),
            penalized_ids=np.unique(ids),
        )
        inputs = {"audio_encoder": audio_items, "vision_encoder": image_items, "thinker": [Payload(prompt)]}
        return Prepared(
            inputs={stage: payloads for stage, payloads in inputs.items() if payloads},
            edges={"thinker->talker": talker.args} if talker is not None else {},
            prompt_tokens=len(ids),
        )

    def _tokens(self, chat: Chat) -> NDArray[np.int64]:
        """The prompt, with one placeholder for each piece of media."""
        with self._lock:
            text = self._processor.apply_chat_template(_conversation(chat), add_generation_prompt=True, tokenize=False)
            return np.asarray(self._processor.tokenizer(text)["input_ids"], np.int64)

    def _expand(
        self, ids: NDArray[np.int64], audios: Sequence[Payload], images: Sequence[Payload]
    ) -> NDArray[np.int64]:
        """Repeats each placeholder for as many tokens as its media has."""
        counts = np.ones(len(ids), np.int64)
        for token, items in ((self._config.audio_token, audios), (self._config.image_token, images)):
            counts[ids == token] = [item.meta.length for item in items if isinstance(item.meta, MediaItem)]
        return np.repeat(ids, counts)

    def _positions(self, ids: NDArray[np.int64], grids: Sequence[Grid]) -> tuple[NDArray[np.int64], int]:
        config = self._config
        return mrope_positions(
            ids,
            grids,
            image_token=config.image_token,
            merge=config.spatial_merge_size,
            per_second=config.position_id_per_seconds,
        )

    def _audio_items(self, parts: Sequence[AudioPart]) -> list[Payload]:
        if not parts:
            return []
        # Together, as the published processor does it: clips are padded to the longest before their spectra are taken.
        extractor = self._processor.feature_extractor
        clips = [part.samples for part in parts]
        features = extractor(
            clips,
            sampling_rate=extractor.sampling_rate,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        kept = [
            mel[:, mask.bool()].contiguous()
            for mel, mask in zip(features["input_features"], features["attention_mask"], strict=True)
        ]
        window = self._config.audio_window
        chunk = padded_chunk([mel.shape[1] for mel in kept], window)
        return [
            Payload(
                MediaItem(
                    index=index,
                    key=f"{content_hash(mel.numpy())}-{chunk}",
                    batch_key=chunk,
                    length=encoded_frames(mel.shape[1], window),
                ),
                {"features": mel, "chunk": torch.tensor(chunk)},
            )
            for index, mel in enumerate(kept)
        ]

    def _image_items(self, parts: Sequence[ImagePart]) -> tuple[list[Payload], list[Grid]]:
        items, grids = [], []
        for index, part in enumerate(parts):
            features = self._processor.image_processor(images=[part.image], return_tensors="pt")
            pixels, grid = features["pixel_values"], features["image_grid_thw"][0]
            time, height, width = grid.tolist()
            length = time * height * width // self._config.spatial_merge_size**2
            key = f"{content_hash(pixels.numpy())}-{content_hash(grid.numpy())}"
            meta = MediaItem(index=index, key=key, batch_key=0, length=length)
            items.append(Payload(meta, {"pixels": pixels.contiguous(), "grid": grid}))
            grids.append((time, height, width))
        return items, grids

    def _segments(
        self, ids: NDArray[np.int64], audios: Sequence[Payload], images: Sequence[Payload]
    ) -> tuple[SegmentSlot, ...]:
        slots = []
        for name, token, items in (
            ("audio", self._config.audio_token, audios),
            ("image", self._config.image_token, images),
        ):
            places = np.flatnonzero(ids == token)
            media = [item.meta for item in items if isinstance(item.meta, MediaItem)]
            ends = np.cumsum([meta.length for meta in media])
            for meta, part in zip(media, np.split(places, ends[:-1]) if media else [], strict=True):
                slots.append(SegmentSlot(name=name, index=meta.index, positions=part, key=meta.key))
        return tuple(slots)

    def _voice(self, chat: Chat) -> str | None:
        if "audio" not in chat.modalities:
            return None
        if not self.voices:
            problem = "ask for audio, which this checkpoint cannot give: it has no talker"
            raise InputError("modalities", problem, 'ask for "text" only or use an Instruct checkpoint')
        if chat.voice is None:
            return self.voices[0]
        if chat.voice.lower() not in self.voices:
            raise InputError("voice", f"{chat.voice!r} is unknown", f"use one of {', '.join(self.voices)}")
        return chat.voice.lower()

    def _check(self, chat: Chat) -> None:
        parts = [part for message in chat.messages for part in message.content]
        if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
            raise InputError("messages", "hold no text, sound or picture", "give the model something to answer")
        reserved = (self._processor.audio_token, self._processor.image_token, self._processor.video_token)
        for index, message in enumerate(chat.messages):
            for part in message.content:
                if isinstance(part, ImagePart):
                    _check_proportions(part)
            # Neighbouring texts are read as one.
            text = "".join(part.text if isinstance(part, TextPart) else "\n" for part in message.content)
            for word in reserved:
                if word in text:
                    problem = f"holds {word!r}, which stands for media"
                    raise InputError(f"messages[{index}].content", problem, "remove it or attach the media as a part")


def _check_proportions(part: ImagePart) -> None:
    short, long = sorted(part.image.size)
    if long > _MAX_PROPORTION * short:
        problem = (
            f"is {part.image.width} x {part.image.height} pixels, more than {_MAX_PROPORTION} times as long as wide"
        )
        raise InputError(part.field, problem, "crop it")


def _conversation(chat: Chat) -> list[dict[str, Any]]:
    return [{"role": m.role, "content": [_part(part) for part in m.content]} for m in chat.messages]


def _part(part: TextPart | AudioPart | ImagePart) -> dict[str, str]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case AudioPart():
            return {"type": "audio", "audio": ""}
        case ImagePart():
            return {"type": "image", "image": ""}


def build(checkpoint: Checkpoint) -> OmniFrontend:
    """The checkpoint's front end."""
    return OmniFrontend(read_config(checkpoint), load_processor(checkpoint.path))
