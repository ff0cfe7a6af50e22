"""Writes a tiny random checkpoint, as one would be published."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen3Config, Qwen3Model

from omni.checkpoint import Checkpoint
from omni.tiny import byte_tokenizer, decoder_settings, fill, scale_peak, write_json
from omni.utils.quiet import quiet
from plain_tts.config import read_config
from plain_tts.vocoder import Vocoder

_CODES, _GROUPS, _WIDTH, _SPEAK = 40, 4, 32, "<|speak|>"


def write(directory: Path, *, seed: int) -> None:
    """About 60,000 parameters in float32, and a tokenizer of bytes."""
    tokenizer = byte_tokenizer((_SPEAK,))
    talker = decoder_settings(2, 4, 2, 16, _WIDTH, 512)
    small = decoder_settings(1, 2, 1, 16, _WIDTH, _GROUPS)
    config = {
        "model_type": "plain_tts",
        "text_vocab_size": len(tokenizer),
        "codebook_size": _CODES,
        "num_groups": _GROUPS,
        "speak_token": tokenizer.convert_tokens_to_ids(_SPEAK),
        "talker": talker,
        "code_predictor": small,
        "vocoder": {"width": 32, "rates": [5, 4, 2], "sample_rate": 16000},
    }
    tokenizer.save_pretrained(directory)
    write_json(directory / "config.json", config)
    generation = {"eos_token_id": _CODES, "do_sample": True, "top_k": 20}
    write_json(directory / "generation_config.json", generation)
    generator = torch.Generator().manual_seed(seed)
    with quiet(), torch.no_grad():
        vocoder = Vocoder(read_config(Checkpoint(directory)))
        speaker = _talker(talker, small, len(tokenizer))
        model = nn.ModuleDict({"talker": speaker, "vocoder": vocoder})
        fill(model, generator, deep="vocoder")
        codes_1NG = torch.randint(_CODES, (1, 50, _GROUPS), generator=generator)
        row_1, state = torch.zeros(1, dtype=torch.int64), vocoder.new_state(1)
        scale_peak(vocoder.layers[-1], lambda: vocoder.decode(codes_1NG, state, row_1, True))
    save_file(model.state_dict(), directory / "model.safetensors")


def _talker(talker: dict[str, Any], small: dict[str, Any], vocab_size: int) -> nn.ModuleDict:
    """The modules whose names the published weights bear."""
    inner = Qwen3Model(Qwen3Config(**small, vocab_size=1))
    del inner.embed_tokens
    inner.codec_embedding = nn.ModuleList(nn.Embedding(_CODES, _WIDTH) for _ in range(_GROUPS - 1))
    heads = nn.ModuleList(nn.Linear(_WIDTH, _CODES, bias=False) for _ in range(_GROUPS - 1))
    return nn.ModuleDict(
        {
            "model": Qwen3Model(Qwen3Config(**talker, vocab_size=vocab_size)),
            "codec_embedding": nn.Embedding(_CODES + 1, _WIDTH),
            "codec_head": nn.Linear(_WIDTH, _CODES + 1, bias=False),
            "code_predictor": nn.ModuleDict({"model": inner, "lm_head": heads}),
        }
    )
