"""What transformers makes of a tiny CSM: the speech that the engine's is compared with."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    CsmForConditionalGeneration,
    CsmProcessor,
    LogitsProcessor,
    LogitsProcessorList,
)

from omni.checkpoint import Checkpoint
from omni.frontend.base import AudioPart, Chat, Message, Part, TextPart
from omni.sampling import SamplingParams
from omni.utils.quiet import quiet
from omni_csm.tiny import write_tiny
from tests.support.omni_engine import TOLERANCE, Result
from tests.support.reference import GroupNoise, GumbelNoise, sound, temporary_folder, warpers

_RATE = 24000
SPEECH = frozenset({"audio"})


@dataclass(frozen=True, slots=True)
class Spoken:
    """codes: int64 `[G, frames]`, and wave: fp32 `[samples]`, of the decoded frames. ended: whether a frame ended it."""

    codes: Tensor
    wave: NDArray[np.float32]
    ended: bool


@cache
def tiny_csm(seed: int = 0, **shape: Any) -> Path:
    """A tiny checkpoint of this seed and shape, written once per test run."""
    folder = temporary_folder()
    write_tiny(folder, seed=seed, **shape)
    return folder


@cache
def csm_reference_of(folder: Path) -> "CsmReference":
    return CsmReference(folder)


def turn(role: Any, text: str, seconds: float | None = None, seed: int = 0, name: str | None = None) -> Message:
    """A message; with `seconds`, with its sound."""
    parts: tuple[Part, ...] = (TextPart(text),)
    return Message(role, parts if seconds is None else (*parts, sound(seconds, seed, _RATE)), name)


def speak(*turns: str | Message, frames: int = 12, voice: str | None = None, **sampling: Any) -> Chat:
    """A request for so many frames, greedy unless a temperature is given; a string is a user's turn without sound."""
    messages = tuple(turn("user", said) if isinstance(said, str) else said for said in turns)
    params = SamplingParams(**({"temperature": 0.0} | sampling), max_tokens=frames)
    return Chat(messages, SPEECH, voice, {"backbone": params})


class CsmReference:
    """transformers' model and processor for a checkpoint folder, float32, on the CPU; one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._defaults = Checkpoint(folder).generation_config
        with quiet():
            self.processor = CsmProcessor.from_pretrained(folder)
            self.model = CsmForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(self, chat: Chat) -> dict[str, Tensor]:
        """Model inputs of the chat, from transformers' own processor."""
        voice = chat.voice or chat.messages[-1].name or "0"
        other = "1" if voice == "0" else "0"
        speakers = [m.name or (other if m.role == "user" else voice) for m in chat.messages[:-1]] + [voice]
        conversation: Any = [
            {"role": who, "content": [_part(part) for part in message.content]}
            for who, message in zip(speakers, chat.messages, strict=True)
        ]
        clips = [p.samples for message in chat.messages for p in message.content if isinstance(p, AudioPart)]
        text = self.processor.apply_chat_template(conversation, tokenize=False)
        given: dict[str, Tensor] = self.processor(text=text, audio=clips or None)
        return given

    def speech(self, chat: Chat) -> Spoken:
        """What `generate` gives, with the engine's noise where the chat has a temperature."""
        params = chat.sampling["backbone"]
        assert params.max_tokens is not None
        with ExitStack() as stack:
            for context in (torch.no_grad(), quiet(), self._noise(params)):
                stack.enter_context(context)
            noise = [_FrameNoise(params.seed or 0, 0)] if params.temperature else []
            drawn = warpers(params.temperature, params.top_k, params.top_p)
            out = self.model.generate(
                **self.inputs(chat),
                max_new_tokens=params.max_tokens,
                do_sample=False,
                depth_decoder_do_sample=False,
                logits_processor=LogitsProcessorList(
                    [*drawn, *noise, stack.enter_context(_Endings(self.model, params))]
                ),
                output_audio=True,
                return_dict_in_generate=True,
            )
            frames_NG, wave = out.sequences[0], out.audio[0].numpy()
            ended = not (params.ignore_eos or frames_NG[-1, :-1].any() or len(frames_NG) <= (params.min_tokens or 0))
            if params.ignore_eos or params.min_tokens:
                # What transformers gives as audio ends at the first frame that could have ended it.
                heard = len(frames_NG) - (ended and not frames_NG[-1].any())
                wave = self.model.codec_model.decode(frames_NG[None, :heard].mT).audio_values[0, 0].numpy()
        heard = len(wave) // self.model.config.codec_config.frame_size
        return Spoken(frames_NG[:heard].T, wave, ended)

    @contextmanager
    def _noise(self, params: SamplingParams) -> Iterator[None]:
        depth = self.model.depth_decoder
        frames, generate, own = 0, depth.generate, self._defaults

        def noisy(**arguments: Any) -> Any:
            nonlocal frames
            drawn: list[LogitsProcessor] = []
            if params.temperature or params.code_temperature:
                # The depth decoder has settings of its own, in generation_config.json, and those that a request gives it.
                temperature, top_k = params.code_temperature, params.code_top_k
                temperature = own["depth_decoder_temperature"] if temperature is None else temperature
                drawn = warpers(temperature, own["depth_decoder_top_k"] if top_k is None else top_k, params.code_top_p)
                if drawn:
                    assert params.seed is not None
                    drawn.append(GroupNoise(params.seed, frames, first=-1))
            frames += 1
            return generate(**arguments, logits_processor=LogitsProcessorList(drawn))

        with mock.patch.object(depth, "generate", noisy):
            yield


class _FrameNoise(GumbelNoise):
    """The noise that the engine draws first codes with: after the prompt, `input_ids` are frames."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(input_ids if input_ids.dim() == 3 else input_ids[:, :0], scores)


class _Endings(LogitsProcessor):
    """Inside it no frame, or none of the first, ends the sound, where a request asks for it: transformers has no such option."""

    def __init__(self, model: Any, params: SamplingParams) -> None:
        self._config, self._code = model.config, model.config.codebook_eos_token_id
        self._least = math.inf if params.ignore_eos else params.min_tokens or 0

    def __enter__(self) -> "_Endings":
        return self

    def __exit__(self, *error: object) -> None:
        self._config.codebook_eos_token_id = self._code

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        frames = input_ids.shape[1] if input_ids.dim() == 3 else 0
        self._config.codebook_eos_token_id = self._code if frames >= self._least else -1
        return scores


def _part(part: Part) -> dict[str, str]:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "audio", "audio": ""}


def assert_spoken(result: Result, spoken: Spoken) -> None:
    """Codes of all groups are equal, the waveform is within 1e-4 of its peak."""
    if result.error is not None:
        raise result.error
    assert torch.equal(result.codes, spoken.codes), f"\n{result.codes}\n{spoken.codes}"
    assert result.wave.shape == spoken.wave.shape
    assert np.abs(result.wave - spoken.wave).max() <= TOLERANCE * np.abs(spoken.wave).max()
