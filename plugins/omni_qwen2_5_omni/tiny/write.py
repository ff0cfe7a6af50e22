"""Writes a tiny random Qwen2.5-Omni checkpoint in the published format, for trials without a download."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
    WhisperFeatureExtractor,
)

from omni.tiny import (
    build_tokenizer,
    fill,
    generation_config,
    scale_peak,
    seeded,
    tame,
    tame_text,
    tiny_shape,
    write_preprocessor,
)
from omni_qwen2_5_omni.tiny.shape import TinyShape, model_config
from omni_qwen2_5_omni.tiny.tokenizer import TOKENS


def write_tiny(directory: str | os.PathLike[str], *, seed: int = 0, **shape: object) -> None:
    """Writes weights in float32, voices, tokenizer and processor files into `directory`.

    It differs from a published checkpoint in its sizes only, and transformers reads it too. The same arguments write the same
    checkpoint. shape: fields of `TinyShape` that differ from their defaults. Raises ConfigError for a field that `TinyShape` lacks
    or a value of a wrong type.
    """
    sizes = tiny_shape(TinyShape, shape)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(TOKENS, Qwen2Tokenizer, sizes.max_positions)
    tokenizer.save_pretrained(folder)
    audio = WhisperFeatureExtractor(feature_size=128, chunk_length=300, return_attention_mask=True)
    names = {"processor_class": "Qwen2_5OmniProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    write_preprocessor(folder, Qwen2VLImageProcessorPil(), audio, **names)
    # Published vocabularies end with unused ids, too.
    vocab_size = -(-(len(tokenizer) + 8) // 64) * 64
    config = model_config(sizes, tokenizer.get_vocab(), vocab_size)
    # transformers draws from the global generator to denoise.
    with seeded(seed) as generator:
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**config)).eval()
        model.generation_config = generation_config(tokenizer)
        fill(model, generator, deep="token2wav")
        tame_text(model.thinker, tokenizer, sizes.stop_gain)
        if sizes.talker:
            voices = _voices(sizes, config["token2wav_config"]["dit_config"], vocab_size, generator)
            token2wav, voice = model.token2wav, voices[sizes.voices[0]]
            codes_1N = torch.randint(sizes.codes, (1, 30), generator=generator)
            speak = partial(token2wav, codes_1N, voice["cond"], voice["ref_mel"])
            scale_peak(token2wav.code2wav_bigvgan_model.conv_post, speak)
            torch.save(voices, folder / "spk_dict.pt")
            tame(model.talker.codec_head, range(sizes.codes), {sizes.codes + 2}, sizes.codec_stop_gain)
        model.save_pretrained(folder)


def _voices(
    shape: TinyShape, dit: dict[str, Any], vocab_size: int, generator: torch.Generator
) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "bos_token": vocab_size - 5 + index % 5,
            "cond": torch.randn((1, dit["enc_emb_dim"]), generator=generator),
            "ref_mel": torch.randn((1, 40 + index, dit["mel_dim"]), generator=generator) - 3,
        }
        for index, name in enumerate(shape.voices)
    }
