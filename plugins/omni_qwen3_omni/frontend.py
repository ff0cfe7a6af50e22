"""Converts a chat to stage inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni.checkpoint import Checkpoint
from omni.checkpoint.checks import RESTORE_FILE
from omni.errors import CheckpointError
from omni.frontend.base import AudioPart, Chat, Prepared
from omni.frontend.chat import MultimodalFrontend
from omni.frontend.encoding import Ids
from omni.frontend.hf_files import load_preprocessor, load_tokenizer
from omni.frontend.media import Media, spectra
from omni.media import content_hash
from omni.payload import Payload
from omni_ar.inputs import prompt_of
from omni_encoder.inputs import media_items
from omni_qwen3_omni.audio_plan import encoded_frames, padded_chunk
from omni_qwen3_omni.config import OmniConfig, read_config
from omni_qwen3_omni.talker_prompt import talker_args


class OmniFrontend(MultimodalFrontend):
    """Chat template, features and prompts. processors: of text, pictures and sound."""

    def __init__(self, config: OmniConfig, *processors: Any) -> None:
        tokenizer, images, self._audio = processors
        super().__init__(config, tokenizer, images)
        self._config = config
        self.voices = tuple(config.talker.speakers) if config.talker is not None else ()

    def check(self) -> Ids:
        """Also checks that the chat template uses config.json's ids of turns."""
        ids, own = super().check(), self._config
        opens = np.flatnonzero(ids[:-1] == own.im_start)
        for name, token, turns in (("user", own.user, opens), ("assistant", own.assistant, opens[-1:])):
            if token not in ids[turns + 1]:
                field = f"config.json: {'im_start' if not opens.size else name}_token_id"
                problem = f"is not the token that opens turns of the {name} in the chat template"
                raise CheckpointError(field, problem, RESTORE_FILE)
        return ids

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for an empty prompt, placeholders in texts, an unknown voice, or audio of a model without speech."""
        voice, encoded = self.chosen_voice(chat, "it has no talker"), self.encode(chat)
        talker = talker_args(self._config, encoded, voice) if voice is not None else None
        prompt = prompt_of(encoded, talker.hidden_from if talker is not None else None)
        media = media_items({"audio_encoder": encoded.media["audio"], "vision_encoder": encoded.media["image"]})
        return Prepared(
            inputs=media | {"thinker": [Payload(prompt)]},
            edges={"thinker->talker": talker.args} if talker is not None else {},
            prompt_tokens=prompt.length,
        )

    def sounds(self, parts: Sequence[AudioPart]) -> list[Media]:
        mels, half = spectra(self._audio, parts), self._config.audio_half_chunk
        chunk = padded_chunk([mel.shape[1] for mel in mels], half) if mels else 0
        return [
            Media(
                {"features": mel, "chunk": torch.tensor(chunk)},
                length=encoded_frames(mel.shape[1], half),
                key=f"{content_hash(mel.numpy())}-{chunk}",
                batch_key=chunk,
                field=part.field,
            )
            for part, mel in zip(parts, mels, strict=True)
        ]


def build(checkpoint: Checkpoint) -> OmniFrontend:
    """The checkpoint's front end. Raises CheckpointError for files that are missing or wrong."""
    tokenizer = load_tokenizer(checkpoint.path, Qwen2Tokenizer)
    processors = [
        load_preprocessor(checkpoint.path, kind) for kind in (Qwen2VLImageProcessorPil, WhisperFeatureExtractor)
    ]
    frontend = OmniFrontend(read_config(checkpoint), tokenizer, *processors)
    frontend.check()
    return frontend
