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

from omni.quiet import quiet
from omni.tiny import fill, sayable, scale_peak, tame, tiny_shape, write_json, write_preprocessor
from omni_qwen3_omni.tiny.config import PATCH, Json, model_config
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
    with quiet():
        tokenizer = write_tokenizer(folder, sizes.max_positions)
        ids: dict[str, int] = tokenizer.get_vocab()
        # Published vocabularies end with unused ids, too.
        config = model_config(sizes, ids, -(-len(tokenizer) // 64) * 64)
        model = _model(config, seed)
        stop = config["im_end_token_id"]
        head = model.thinker.lm_head
        tame(head, sayable(tokenizer, head.out_features), {stop}, sizes.stop_gain)
        if sizes.talker:
            stops, codes = {config["talker_config"]["codec_eos_token_id"]}, model.talker.codec_head
            tame(codes, range(codes.out_features), stops, sizes.codec_stop_gain)
        model.save_pretrained(folder, max_shard_size=sizes.max_shard_size)
    write_json(folder / "config.json", config)
    end = ids["<|endoftext|>"]
    write_json(folder / "generation_config.json", {"eos_token_id": [stop, end], "pad_token_id": end})
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    audio = WhisperFeatureExtractor(feature_size=128, chunk_length=300, return_attention_mask=True)
    names = {"processor_class": "Qwen3OmniMoeProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    write_preprocessor(folder, images, audio, **names)


def _model(config: Json, seed: int) -> Any:
    """The model that `config` describes, on the CPU in float32, with weights that follow from `seed` alone."""
    # Building draws from the global generator; what it draws is overwritten.
    with torch.random.fork_rng(devices=[]):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    fill(model, generator, deep="code2wav")
    if model.has_talker:
        vocoder = model.code2wav
        shape = (1, vocoder.config.num_quantizers, _CALIBRATION_FRAMES)
        codes_1QN = torch.randint(vocoder.config.codebook_size, shape, generator=generator)
        with torch.no_grad():
            scale_peak(vocoder.decoder[-1].conv, lambda: vocoder(codes_1QN))
    return model
