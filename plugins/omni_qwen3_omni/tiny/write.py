"""Writes a tiny random Qwen3-Omni checkpoint in the published format: the default that needs no download."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Qwen2VLImageProcessorPil,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)

from omni.tiny import (
    fill,
    generation_config,
    scale_peak,
    seeded,
    tame,
    tame_text,
    tiny_shape,
    write_json,
    write_preprocessor,
)
from omni_qwen3_omni.tiny.config import PATCH, model_config
from omni_qwen3_omni.tiny.shape import TinyShape
from omni_qwen3_omni.tiny.tokenizer import write_tokenizer

_CALIBRATION_FRAMES = 64


def write_tiny(directory: str | os.PathLike[str], *, seed: int = 0, **shape: object) -> None:
    """Writes a checkpoint of about 0.7 M parameters, in float32, with tokenizer and processor files, into `directory`.

    It differs from a published one in its sizes only, and transformers reads it too. The same arguments write the same
    checkpoint. shape: fields of `TinyShape` that differ from their defaults.

    Raises ConfigError for a field that `TinyShape` lacks or a value of a wrong type.
    """
    sizes = tiny_shape(TinyShape, shape)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with seeded(seed) as generator:
        tokenizer = write_tokenizer(folder, sizes.max_positions)
        # Published vocabularies end with unused ids, too.
        config = model_config(sizes, tokenizer.get_vocab(), -(-len(tokenizer) // 64) * 64)
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**config)).eval()
        model.generation_config = generation_config(tokenizer)
        fill(model, generator, deep="code2wav")
        tame_text(model.thinker, tokenizer, sizes.stop_gain)
        if sizes.talker:
            _tame_speech(model, generator, sizes.codec_stop_gain)
        model.save_pretrained(folder, max_shard_size=sizes.max_shard_size)
    # As published: without the fields that transformers fills.
    write_json(folder / "config.json", config)
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    audio = WhisperFeatureExtractor(feature_size=128, chunk_length=300, return_attention_mask=True)
    names = {"processor_class": "Qwen3OmniMoeProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    write_preprocessor(folder, images, audio, **names)


def _tame_speech(model: Any, generator: torch.Generator, stop_gain: float) -> None:
    talker, vocoder = model.talker, model.code2wav
    shape = (1, vocoder.config.num_quantizers, _CALIBRATION_FRAMES)
    codes_1QN = torch.randint(vocoder.config.codebook_size, shape, generator=generator)
    scale_peak(vocoder.decoder[-1].conv, lambda: vocoder(codes_1QN))
    tame(talker.codec_head, range(talker.codec_head.out_features), {talker.config.codec_eos_token_id}, stop_gain)
