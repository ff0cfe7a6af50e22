"""What transformers makes of a tiny checkpoint: the answers that the engine's are compared with."""

import atexit
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
    Qwen3OmniMoeForConditionalGeneration,
    Qwen3OmniMoeProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WhisperFeatureExtractor,
)

from omni.checkpoint import Checkpoint
from omni.frontend.base import AudioPart, Chat, ImagePart, Message, Part, TextPart
from omni.frontend.hf_files import load_preprocessor, load_tokenizer
from omni.sampling import SamplingParams
from omni.utils.quiet import quiet
from omni_ar.sampling.rng import gumbel
from omni_qwen3_omni.tiny import write_tiny

# transformers' own processor of the first family. Needs no torchvision, because it takes no video.


class _NoVideo:
    """Stands where the processor keeps its video processor."""

    merge_size = 2
    model_input_names: tuple[str, ...] = ()


class _Processor(Qwen3OmniMoeProcessor):
    def check_argument_for_proper_class(self, argument_name: str, argument: object) -> type:
        # Without torchvision there is no class that a video processor could be an instance of.
        if isinstance(argument, _NoVideo):
            return _NoVideo
        proper: type = super().check_argument_for_proper_class(argument_name, argument)
        return proper


def load_processor(path: str | Path) -> Qwen3OmniMoeProcessor:
    """The processor of the checkpoint in `path`, its files read as the front end reads them."""
    folder = Path(path)
    tokenizer = load_tokenizer(folder, Qwen2Tokenizer)
    images = load_preprocessor(folder, Qwen2VLImageProcessorPil)
    audio = load_preprocessor(folder, WhisperFeatureExtractor)
    template = tokenizer.chat_template
    return _Processor(images, _NoVideo(), audio, tokenizer, chat_template=template)


# Requests for the parity tests: sounds, pictures and turns in a few words.

SPEECH_RATE = 16000
SPEECH = frozenset({"text", "audio"})
TEXT = frozenset({"text"})


def sound(seconds: float, seed: int = 0, rate: int = SPEECH_RATE) -> AudioPart:
    """A random chord with some noise."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    chord = sum(np.sin(2 * np.pi * hertz * time) for hertz in random.uniform(100, 3000, 3))
    samples = 0.2 * chord + 0.02 * random.standard_normal(len(time))
    return AudioPart(samples.astype(np.float32), "sound")


def picture(width: int, height: int, seed: int = 0) -> ImagePart:
    """Random blocks of color."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    return ImagePart(Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST), "picture")


def says(role: Literal["system", "user", "assistant"], *parts: str | Part) -> Message:
    return Message(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


def chat(
    *turns: str | Part | Message,
    voice: str | None = "ethan",
    max_text: int = 10,
    max_codes: int = 14,
    thinker: SamplingParams | None = None,
    talker: SamplingParams | None = None,
) -> Chat:
    """A greedy request; `voice` None asks for text only. Parts that stand alone make one user turn."""
    parts = [turn for turn in turns if not isinstance(turn, Message)]
    messages = [turn for turn in turns if isinstance(turn, Message)] or [says("user", *parts)]
    sampling = {
        "thinker": (thinker or SamplingParams()).with_defaults(SamplingParams(temperature=0.0, max_tokens=max_text))
    }
    if voice is not None:
        sampling["talker"] = (talker or SamplingParams()).with_defaults(
            SamplingParams(temperature=0.0, max_tokens=max_codes)
        )
    return Chat(tuple(messages), TEXT if voice is None else SPEECH, voice, sampling)


def with_tokens(asked: Chat) -> Chat:
    """The same request, in whose texts control tokens are tokens."""
    return replace(asked, control_tokens="tokens")


def text_only(asked: Chat) -> Chat:
    """The same request without speech."""
    return replace(asked, modalities=TEXT)


def with_sampling(asked: Chat, stage: str, **fields: Any) -> Chat:
    """The same request with other sampling at one stage."""
    params = msgspec.structs.replace(asked.sampling[stage], **fields)
    return replace(asked, sampling={**asked.sampling, stage: params})


# transformers' own logits processors followed by the engine's noise, under greedy decoding: a sampled run to compare with.
#
# `argmax(warped logits + Gumbel noise)` is a draw from the warped distribution; with the noise shared, both sides must draw
# the same tokens.

Generate = Callable[..., Any]


class GumbelNoise(LogitsProcessor):
    """Adds the noise that the engine draws with. start: ids that stand before the first generated one."""

    def __init__(self, seed: int, start: int) -> None:
        self._seed = torch.tensor([seed])
        self._start = start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = torch.tensor([input_ids.shape[1] - self._start])
        return scores + gumbel(self._seed, torch.zeros_like(position), position, 0, 0, scores.shape[1])


class GroupNoise(LogitsProcessor):
    """The same for the code groups of frame `position`: the id after n others is of group n + `first`."""

    def __init__(self, seed: int, position: int, first: int = 1) -> None:
        self._seed = torch.tensor([seed])
        self._position = torch.tensor([position])
        self._first = first

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        group = input_ids.shape[1] + self._first
        zero = torch.zeros_like(self._position)
        return scores + gumbel(self._seed, zero, self._position, group, 0, scores.shape[1])


def sampling_arguments(chat: Chat, prompt: int) -> dict[str, Any]:
    """Keyword arguments of `generate` for the chat's sampling. prompt: tokens of the thinker's prompt.

    The talker gets embeddings, so its processors get generated codes only.
    """
    arguments: dict[str, Any] = {"thinker_do_sample": False}
    if "audio" in chat.modalities:
        arguments["talker_do_sample"] = False
    for stage, start in (("thinker", prompt), ("talker", 0)):
        params = chat.sampling.get(stage)
        if params is None or (stage == "talker" and "audio" not in chat.modalities):
            continue
        if params.max_tokens is not None:
            arguments[f"{stage}_max_new_tokens"] = params.max_tokens
        if params.repetition_penalty is not None:
            arguments[f"{stage}_repetition_penalty"] = params.repetition_penalty
        if params.temperature:
            arguments[f"{stage}_logits_processor"] = sampled_with(params, start)
    return arguments


def sampled_with(params: SamplingParams, start: int) -> LogitsProcessorList:
    """What makes a greedy choice a draw: warpers of the sampling's temperature, top-k and top-p, then its seed's noise."""
    assert params.seed is not None
    drawn = warpers(params.temperature, params.top_k, params.top_p)
    return LogitsProcessorList([*drawn, GumbelNoise(params.seed, start)])


def warpers(temperature: float | None, top_k: int | None, top_p: float | None) -> list[LogitsProcessor]:
    """transformers' own; none under greedy decoding."""
    if not temperature:
        return []
    found: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
    if top_k:
        found.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1:
        found.append(TopPLogitsWarper(top_p))
    return found


def predictor_noise(chat: Chat) -> Callable[[Generate], Generate] | None:
    """Wraps the code predictor's `generate`, which is called once per frame, or None for a greedy talker."""
    params = chat.sampling.get("talker")
    if params is None or not params.temperature:
        return None
    seed = params.seed
    assert seed is not None

    def wrap(generate: Generate) -> Generate:
        frames = 0

        def noisy(**arguments: Any) -> Any:
            nonlocal frames
            drawn = [*warpers(1.0, 50, 0.8), GroupNoise(seed, frames)]
            frames += 1
            return generate(**arguments, logits_processor=LogitsProcessorList(drawn))

        return noisy

    return wrap


_WHOLE = 300
"""Frames above which `generate` itself decodes in chunks and loses samples at the seams."""


@dataclass(frozen=True, slots=True)
class Answer:
    """ids: generated text tokens. codes: int64 `[G, frames]`. wave: fp32 `[samples]`; both empty without audio."""

    ids: list[int]
    codes: Tensor
    wave: NDArray[np.float32]


def temporary_folder() -> Path:
    """Removed at the end of the test run."""
    folder = Path(tempfile.mkdtemp(prefix="omni-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def tiny_checkpoint(seed: int = 0, *, norm_topk: bool = True, **shape: Any) -> Path:
    """A tiny checkpoint of this seed and shape, written once per test run. norm_topk: of both routers."""
    folder = temporary_folder()
    write_tiny(folder, seed=seed, **{"max_positions": 1024, **shape})
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
        # generate() fails without sound: with one text token, or if the talker's first code is its last.
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
