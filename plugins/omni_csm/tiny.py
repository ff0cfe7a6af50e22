"""Writes a tiny random CSM checkpoint in the published format: the default that needs no download."""

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import CsmConfig, CsmForConditionalGeneration, CsmProcessor, EncodecFeatureExtractor
from transformers import PreTrainedTokenizerFast as FastTokenizer
from transformers.models.mimi import modeling_mimi as hf

from omni.tiny import byte_tokenizer, scale_peak, seeded, tiny_shape
from omni_csm.config import SAMPLE_RATE

_CODE_SPECIALS = 3
"""Ids of a code group beyond its codebook, as published: padding among them."""
_HEAD_DIM = 16
_SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "pad_token": "<|AUDIO|>"}
_CHAT_TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'text' %}<|begin_of_text|>[{{ message.role }}]{{ part.text }}<|end_of_text|>"
    "{% elif part.type == 'audio' %}<|AUDIO|><|audio_eos|>{% endif %}{% endfor %}{% endfor %}"
)


class TinyShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a tiny CSM. semantic: number of semantic groups. sampled: whether its defaults sample, as published,
    with a top-k so small that ids outside the codebooks are not drawn.

    stop_gain: relative gain of the code that ends a sound; 1 is that of other codes.
    """

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    hidden_size: int = 64
    attention_bias: bool = False
    depth_layers: int = 2
    depth_heads: int = 3
    depth_kv_heads: int = 1
    groups: int = 4
    semantic: int = 1
    codebook_size: int = 64
    stop_gain: float = 1.0
    sampled: bool = False


def write_tiny(directory: str | os.PathLike[str], *, seed: int = 0, **shape: object) -> None:
    """Writes a checkpoint of about 0.3 M parameters, in float32, with tokenizer and processor files, into `directory`.

    It differs from a published one in its sizes only, and transformers reads it too. The same arguments write the same
    checkpoint. shape: fields of `TinyShape` that differ from their defaults.

    Raises ConfigError for a field that `TinyShape` lacks or a value of a wrong type.
    """
    sizes = tiny_shape(TinyShape, shape)
    tokenizer = byte_tokenizer(("<|audio_eos|>",), **_SPECIAL)
    with seeded(seed):
        model = CsmForConditionalGeneration(CsmConfig(**_config(sizes, tokenizer))).eval()
        _enliven(model, sizes)
        if sizes.sampled:
            for part in (model, model.depth_decoder):
                part.generation_config.update(do_sample=True, temperature=0.9, top_k=10)
        model.save_pretrained(directory)
    extractor = EncodecFeatureExtractor(sampling_rate=SAMPLE_RATE)
    CsmProcessor(extractor, tokenizer, chat_template=_CHAT_TEMPLATE).save_pretrained(Path(directory))


def _config(shape: TinyShape, tokenizer: FastTokenizer) -> dict[str, Any]:
    codes = shape.codebook_size + _CODE_SPECIALS
    codec = _decoder(2, 2, 2, 32, gain=1.0) | {
        "model_type": "mimi",
        "codebook_size": shape.codebook_size,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": shape.groups,
        "num_semantic_quantizers": shape.semantic,
        "upsample_groups": 32,
        "num_filters": 4,
        "sliding_window": 12,
        "layer_scale_initial_scale": 0.5,
    }
    depth = _decoder(shape.depth_layers, shape.depth_heads, shape.depth_kv_heads, _HEAD_DIM * shape.depth_heads) | {
        "num_codebooks": shape.groups,
        "vocab_size": codes,
        "backbone_hidden_size": shape.hidden_size,
        "rope_parameters": _rope(0.001953125, 0.0078125, 16),
    }
    return _decoder(shape.layers, shape.heads, shape.kv_heads, shape.hidden_size) | {
        "attention_bias": shape.attention_bias,
        "rope_parameters": _rope(0.125, 0.5, 1024),
        "num_codebooks": shape.groups,
        "vocab_size": codes,
        "text_vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "audio_token_id": tokenizer.pad_token_id,
        "audio_eos_token_id": tokenizer.convert_tokens_to_ids("<|audio_eos|>"),
        "depth_decoder_config": depth,
        "codec_config": codec,
    }


def _decoder(layers: int, heads: int, kv_heads: int, width: int, gain: float = 2.0) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _HEAD_DIM,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        # At the published value, 0.02, a tiny model's output does not depend on its input.
        "initializer_range": gain / math.sqrt(width),
    }


def _rope(low: float, high: float, trained: int) -> dict[str, Any]:
    scaling = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": trained}
    return {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0} | scaling


@torch.no_grad()
def _enliven(model: CsmForConditionalGeneration, shape: TinyShape) -> None:
    """Fills codebooks, which transformers leaves at zero, makes ids outside the codebooks unlikely, and fixes the
    waveform's peak."""
    for name, tensor in model.codec_model.quantizer.named_buffers():
        if name.endswith("embed_sum"):
            tensor.normal_()
        elif name.endswith("cluster_usage"):
            tensor.uniform_(0.5, 1.5)
    for head in (model.lm_head.weight[:, None], model.depth_decoder.codebooks_head.weight.transpose(0, 2)):
        head[shape.codebook_size :] *= 0.1
        head[0] *= shape.stop_gain
    model.backbone_model.embed_tokens.embed_audio_tokens.weight.copy_(model.depth_decoder.model.embed_tokens.weight)
    codes_1GN = torch.randint(shape.codebook_size, (1, shape.groups, 60))
    codec = model.codec_model
    (seanet,) = (module for module in codec.decoder.modules() if isinstance(module, hf.MimiDecoder))
    last: Any = seanet.layers[-1]
    scale_peak(last.conv, lambda: codec.decode(codes_1GN).audio_values)
