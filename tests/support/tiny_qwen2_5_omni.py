"""Tiny Qwen2.5-Omni checkpoints, and what transformers makes of them.

Shape legend: T tokens of a prompt, D the thinker's width, M mel bins, S samples.
"""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2Tokenizer

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.frontend.base import AudioPart, Chat, ImagePart, Message, Part, TextPart
from omni.pipeline import Stage
from omni.stage import StageContext
from omni.utils.quiet import quiet
from omni_ar.options import ArOptions
from omni_qwen2_5_omni.frontend import build
from omni_qwen2_5_omni.tiny import write_tiny
from support.lively_token2wav import noise_is


@cache
def tiny_folder(seed: int = 0, **shape: Any) -> Path:
    """A checkpoint of this seed and shape, written once per test run."""
    folder = Path(tempfile.mkdtemp(prefix="omni-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_tiny(folder, seed=seed, **shape)
    return folder


@cache
def reference_model(folder: Path) -> Any:
    with quiet():
        return Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def stage_context(folder: Path, name: str) -> StageContext:
    """As an engine on the CPU would build the stage."""
    stage = Stage(name=name, kind="ar", model="unused:here", options=ArOptions())
    return StageContext(stage, stage.options, Checkpoint(folder), CpuDevice(), torch.float32, "auto")


def prompt_ids(folder: Path, text: str, media: str = "") -> Tensor:
    """int64 `[T]` of a chat of one message; media: special tokens before its text."""
    tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": media + text}], add_generation_prompt=True, tokenize=False
    )
    return torch.tensor(tokenizer(chat)["input_ids"])


@dataclass(frozen=True)
class Spoken:
    """ids: the thinker's answer. heard_TD: the talker's first input but for the codes' embeddings. logits: of each code, before
    anything is done to them. codes: that were chosen, the one that ended them included. wave_S: of the noise that was given."""

    prompt_T: Tensor
    ids: list[int]
    heard_TD: Tensor
    logits: list[Tensor]
    codes: list[int]
    wave_S: Tensor


@torch.no_grad()
def speak(
    folder: Path,
    prompt_T: Tensor,
    tokens: int = 8,
    codes: int = 20,
    noise_seed: int = 0,
    voice: str = "Chelsie",
    steps: int = 1,
    **media: Any,
) -> Spoken:
    """transformers' own `generate`, greedy. steps: that noise becomes sound in. media: features, as its processor gives them."""
    model = reference_model(folder)
    talker, heard = model.talker.generate, {}

    def listen(**arguments: Any) -> Tensor:
        heard["in"] = arguments["inputs_embeds"][0].clone()
        result = talker(**arguments, return_dict_in_generate=True, output_logits=True)
        heard["logits"], heard["codes"] = [step[0] for step in result.logits], result.sequences
        sequences: Tensor = result.sequences
        return sequences

    if "pixel_values" in media:
        # Without a prefix they reach the talker, too, which refuses them.
        media["thinker_pixel_values"] = media.pop("pixel_values")
    stops = [model.talker.codec_pad_token, model.talker.codec_eos_token]
    with patch.object(model.talker, "generate", listen), torch.random.fork_rng(devices=[]):
        torch.manual_seed(noise_seed)
        sequences, wave_S = model.generate(
            input_ids=prompt_T[None],
            attention_mask=torch.ones_like(prompt_T)[None],
            speaker=voice,
            thinker_max_new_tokens=tokens,
            thinker_do_sample=False,
            talker_max_new_tokens=codes,
            talker_do_sample=False,
            talker_eos_token_id=stops,
            token2wav_num_steps=steps + 1,
            **media,
        )
    start = len(prompt_T)
    return Spoken(
        prompt_T,
        sequences[0, start:].tolist(),
        heard["in"],
        heard["logits"],
        heard["codes"][0, start + 2 :].tolist(),
        wave_S,
    )


def picture(folder: Path, height: int = 4, width: int = 6, seed: int = 0) -> Mapping[str, Tensor]:
    """A picture's features, of so many patches: its tokens are a fourth of them."""
    vision = Checkpoint(folder).config["thinker_config"]["vision_config"]
    values = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    pixels = torch.randn(height * width, values, generator=torch.Generator().manual_seed(seed))
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}


def sound(frames: int = 50, bins: int = 128, seed: int = 0) -> Mapping[str, Tensor]:
    """A clip's features."""
    features = torch.randn(1, bins, frames, generator=torch.Generator().manual_seed(seed))
    return {"input_features": features, "feature_attention_mask": torch.ones(1, frames, dtype=torch.int64)}


@torch.no_grad()
def sound_of(folder: Path, codes: list[int], noise_TM: Tensor, voice: str, steps: int) -> Tensor:
    """transformers' waveform `[S]` of codes, the one that ends them included, and of noise for as many frames or more."""
    model = reference_model(folder)
    said = [code for code in codes if code not in (model.talker.codec_pad_token, model.talker.codec_eos_token)]
    given = model.speaker_map[voice]
    with noise_is(noise_TM[None, : len(said) * model.token2wav.code2wav_dit_model.repeats]):
        wave: Tensor = model.token2wav(
            torch.tensor([said]), conditioning=given["cond"], reference_mel=given["ref_mel"], num_steps=steps + 1
        )
    return wave.reshape(-1)


def as_transformers(folder: Path, messages: list[dict[str, Any]]) -> tuple[Tensor, dict[str, Tensor]]:
    """As `given`, of a chat of one message."""
    parts: list[Part] = []
    for part in messages[0]["content"]:
        match part["type"]:
            case "text":
                parts.append(TextPart(part["text"]))
            case "input_audio":
                parts.append(AudioPart(samples=part["input_audio"], field="audio"))
            case "image_url":
                parts.append(ImagePart(image=Image.fromarray(part["image_url"]), field="image"))
    return given(folder, Chat((Message(role="user", content=tuple(parts)),), frozenset({"text"}), None, {}))


def given(folder: Path, chat: Chat) -> tuple[Tensor, dict[str, Tensor]]:
    """The prompt `[T]` of a chat, and its media as arguments of `generate`: as the front end has them, whose features are compared
    with the published processor's elsewhere."""
    inputs = build(Checkpoint(folder)).prepare(chat).inputs
    media: dict[str, Tensor] = {}
    if pictures := inputs.get("vision_encoder"):
        media["pixel_values"] = torch.cat([payload.tensors["pixels"] for payload in pictures])
        media["image_grid_thw"] = torch.stack([payload.tensors["grid"] for payload in pictures])
    if clips := inputs.get("audio_encoder"):
        features = [payload.tensors["features"].T for payload in clips]
        ones = [torch.ones(len(feature), dtype=torch.int64) for feature in features]
        media["input_features"] = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).transpose(1, 2)
        media["feature_attention_mask"] = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
    return torch.from_numpy(inputs["thinker"][0].meta.columns[0]), media
