"""Converts a chat to stage inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, WhisperFeatureExtractor

from omni.checkpoint import Checkpoint
from omni.frontend.base import AudioPart, Chat, Prepared
from omni.frontend.chat import MultimodalFrontend
from omni.frontend.hf_files import load_preprocessor, load_tokenizer
from omni.frontend.media import Media, spectrum
from omni.media import content_hash
from omni.payload import Payload
from omni_ar.hidden_conditioning import HiddenConditioningArgs
from omni_ar.inputs import Placeholder, Prompt, prompt_of
from omni_diffusion.inputs import Voice
from omni_encoder.inputs import media_items
from omni_qwen2_5_omni.config import OmniConfig, read_config
from omni_qwen2_5_omni.encoders import embedded_frames
from omni_qwen2_5_omni.talker import EOS, FIRST_VOICE, NONE, PAD
from omni_qwen2_5_omni.voices import VoiceReference, read_voices


class OmniFrontend(MultimodalFrontend):
    """Chat template, features and prompts. processors: of text, pictures and sound."""

    def __init__(self, config: OmniConfig, voices: dict[str, VoiceReference], *processors: Any) -> None:
        tokenizer, images, self._audio = processors
        super().__init__(config, tokenizer, images)
        self._config = config
        self.voices = tuple(voices)

    def prepare(self, chat: Chat) -> Prepared:
        """Raises InputError for an empty prompt, placeholders in texts, an unknown voice, or audio of a model without speech."""
        voice, encoded = self.chosen_voice(chat, "its speech is switched off"), self.encode(chat)
        prompt = prompt_of(encoded, np.arange(len(encoded.ids_T)) if voice is not None else None)
        inputs = media_items({"audio_encoder": encoded.media["audio"], "vision_encoder": encoded.media["image"]})
        inputs["thinker"] = [Payload(prompt)]
        if voice is None:
            return Prepared(inputs=inputs, prompt_tokens=prompt.length)
        index = self.voices.index(voice)
        inputs["token2wav"] = [Payload(Voice(index=index))]
        args = self._talker_args(encoded.positions_3T, encoded.next_position, index)
        return Prepared(inputs=inputs, edges={"thinker->talker": args}, prompt_tokens=prompt.length)

    def _talker_args(self, positions_3T: NDArray[np.int64], after: int, voice: int) -> HiddenConditioningArgs:
        """The talker's prompt is the thinker's, at the same positions, then the voice's opening, then the first generated token."""
        talker, length = self._config.talker, positions_3T.shape[1]
        assert talker is not None
        columns = np.full((2, length + 2), NONE)
        columns[:, length] = FIRST_VOICE + voice, talker.codec_pad
        columns[1, length + 1] = talker.codec_bos
        hidden = (np.arange(length), np.array([length + 1]))
        prompt = Prompt(
            columns=columns,
            positions=np.concatenate([positions_3T, np.broadcast_to([after, after + 1], (3, 2))], axis=1),
            next_position=after + 2,
            placeholders=tuple(
                Placeholder(name="hidden", index=i, positions=places) for i, places in enumerate(hidden)
            ),
            penalized_ids=np.unique([talker.codec_mask, talker.codec_pad, talker.codec_bos]),
        )
        return HiddenConditioningArgs(prompt=prompt, none=NONE, eos=EOS, pad=PAD)

    def sounds(self, parts: Sequence[AudioPart]) -> list[Media]:
        mels = [spectrum(self._audio, part) for part in parts]
        return [
            Media({"features": mel}, embedded_frames(mel.shape[1]), content_hash(mel.numpy()), field=part.field)
            for part, mel in zip(parts, mels, strict=True)
        ]


def build(checkpoint: Checkpoint) -> OmniFrontend:
    """The checkpoint's front end. Raises CheckpointError for files that are missing or wrong."""
    config, folder = read_config(checkpoint), checkpoint.path
    tokenizer = load_tokenizer(folder, Qwen2Tokenizer)
    processors = [load_preprocessor(folder, kind) for kind in (Qwen2VLImageProcessorPil, WhisperFeatureExtractor)]
    voices = read_voices(checkpoint) if config.talker is not None else {}
    frontend = OmniFrontend(config, voices, tokenizer, *processors)
    frontend.check()
    return frontend
