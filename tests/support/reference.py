"""What transformers makes of a tiny checkpoint: the answers that the engine's are compared with."""

import atexit
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni.checkpoint import Checkpoint
from omni.frontend.base import AudioPart, Chat, ImagePart, Part, TextPart
from omni.utils.quiet import quiet
from omni_qwen3_omni.tiny import write_tiny
from support.omni_processor import load_processor
from support.reference_chats import text_only
from support.reference_noise import predictor_noise, sampling_arguments

_WHOLE = 300
"""Frames above which `generate` itself decodes in chunks and loses samples at the seams."""


@dataclass(frozen=True, slots=True)
class Answer:
    """ids: generated text tokens. codes: int64 `[G, frames]`. wave: fp32 `[samples]`; both empty without audio."""

    ids: list[int]
    codes: Tensor
    wave: NDArray[np.float32]


@cache
def tiny_checkpoint(seed: int = 0, *, norm_topk: bool = True, **shape: Any) -> Path:
    """A tiny checkpoint of this seed and shape, written once per test run. norm_topk: of both routers."""
    folder = Path(tempfile.mkdtemp(prefix="omni-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_tiny(folder, seed=seed, **shape)
    if not norm_topk:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        for part in ("thinker_config", "talker_config"):
            config[part]["text_config"]["norm_topk_prob"] = False
        file.write_text(json.dumps(config))
    return folder


def sizes(**fields: Any) -> dict[str, Any]:
    """Arguments of `tiny_checkpoint`."""
    return fields


@cache
def reference_of(folder: Path) -> "Reference":
    return Reference(folder)


class Reference:
    """transformers' model and processor for a checkpoint folder, float32, on the CPU; one request at a time."""

    def __init__(self, folder: Path) -> None:
        self.processor = load_processor(folder)
        with quiet():
            self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        if self.model.has_talker:
            # generate() looks for the audio settings there when a request has both sound and pictures.
            self.model.config.talker_config.audio_config = self.model.config.thinker_config.audio_config
        self._eos = Checkpoint(folder).generation_config["eos_token_id"]
        self._answers: dict[str, Answer] = {}

    def answer(self, chat: Chat) -> Answer:
        """What `generate` gives, greedy where the chat's temperature is 0 or open, with the engine's noise where it is not."""
        key = _digest(chat)
        if key not in self._answers:
            self._answers[key] = self._spoken(chat) if "audio" in chat.modalities else self.generate(chat)
        return self._answers[key]

    def inputs(self, chat: Chat) -> Mapping[str, Tensor]:
        """Model inputs of the chat, from transformers' own processor."""
        messages = [{"role": m.role, "content": [_part(part) for part in m.content]} for m in chat.messages]
        parts = [part for message in chat.messages for part in message.content]
        audios = [part.samples for part in parts if isinstance(part, AudioPart)]
        images = [part.image for part in parts if isinstance(part, ImagePart)]
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        inputs: Mapping[str, Tensor] = self.processor(
            text=text, audio=audios or None, images=images or None, return_tensors="pt"
        )
        return inputs

    def _spoken(self, chat: Chat) -> Answer:
        # generate() fails where there is nothing to hear: with one text token, or if the talker's first code is its last.
        text = self.answer(text_only(chat))
        if len(text.ids) == 1 or chat.sampling["talker"].max_tokens == 1:
            return text
        try:
            return self.generate(chat)
        except RuntimeError as error:
            if "stack expects a non-empty TensorList" not in str(error):
                raise
            return text

    def generate(self, chat: Chat, arguments: Mapping[str, Any] | None = None) -> Answer:
        """One run of the model's `generate`. arguments: of it; None takes those of the chat's sampling. Raises what that raises."""
        inputs, speaks = self.inputs(chat), "audio" in chat.modalities
        prompt = inputs["input_ids"].shape[1]
        with ExitStack() as stack:
            for context in (
                torch.no_grad(),
                quiet(),
                _expected_warnings(),
                self._noise(chat),
            ):
                stack.enter_context(context)
            recorded = stack.enter_context(self._recorded_codes())
            result = self.model.generate(
                **inputs,
                **(sampling_arguments(chat, prompt) if arguments is None else arguments),
                **self._stops(chat),
                speaker=chat.voice or "ethan",
                return_audio=speaks,
            )
        if not speaks:
            return Answer(result[0, prompt:].tolist(), torch.empty(0, 0, dtype=torch.int64), np.empty(0, np.float32))
        (codes_1GN,), (sequences, wave) = recorded, result
        if codes_1GN.shape[2] > _WHOLE:
            with torch.no_grad():
                wave = self.model.code2wav(codes_1GN)
        return Answer(sequences[0, prompt:].tolist(), codes_1GN[0], wave.reshape(-1).numpy())

    def _stops(self, chat: Chat) -> dict[str, list[int]]:
        extra = {stage: list(params.stop_token_ids or ()) for stage, params in chat.sampling.items()}
        stops = {"thinker_eos_token_id": self._eos + extra["thinker"]}
        if "audio" in chat.modalities:
            stops["talker_eos_token_id"] = [self.model.config.talker_config.codec_eos_token_id, *extra["talker"]]
        return stops

    @contextmanager
    def _recorded_codes(self) -> Iterator[list[Tensor]]:
        if not self.model.has_talker:
            yield []
            return
        recorded: list[Tensor] = []
        decode = self.model.code2wav.chunked_decode

        def record(codes_1GN: Tensor, **settings: int) -> Tensor:
            recorded.append(codes_1GN.clone())
            wave: Tensor = decode(codes_1GN, **settings)
            return wave

        with mock.patch.object(self.model.code2wav, "chunked_decode", record):
            yield recorded

    @contextmanager
    def _noise(self, chat: Chat) -> Iterator[None]:
        noisy = predictor_noise(chat)
        if noisy is None:
            yield
            return
        predictor = self.model.talker.code_predictor
        with mock.patch.object(predictor, "generate", noisy(predictor.generate)):
            yield


@contextmanager
def _expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        # The talker is fed embeddings: that its penalty counts generated codes only is how the model is meant.
        warnings.filterwarnings("ignore", message="Passing `repetition_penalty` with `inputs_embeds`")
        yield


def _part(part: Part) -> dict[str, str]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case AudioPart():
            return {"type": "audio", "audio": "sound"}
        case ImagePart():
            return {"type": "image", "image": "picture"}


def _digest(chat: Chat) -> str:
    seen = sha256(repr((sorted(chat.modalities), chat.voice, sorted(chat.sampling.items()))).encode())
    for message in chat.messages:
        for part in message.content:
            match part:
                case TextPart(text=text):
                    content = text.encode()
                case AudioPart(samples=samples):
                    content = samples.tobytes()
                case ImagePart(image=image):
                    content = repr(image.size).encode() + image.tobytes()
            seen.update(f"{message.role} {type(part).__name__} {len(content)} ".encode() + content)
    return seen.hexdigest()
