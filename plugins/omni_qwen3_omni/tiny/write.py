"""Writes a tiny random Qwen3-Omni checkpoint in the published format: the default that needs no download."""

import json
import os
from pathlib import Path

import msgspec
from transformers import Qwen2Tokenizer, Qwen3OmniMoeForConditionalGeneration

from omni.errors import ConfigError
from omni_qwen3_omni.quiet import quiet
from omni_qwen3_omni.tiny.config import Json, generation_config, model_config, preprocessor_config
from omni_qwen3_omni.tiny.shape import TinyShape
from omni_qwen3_omni.tiny.tokenizer import ROLE_WORDS, SPECIAL_TOKENS, WORDS, write_tokenizer
from omni_qwen3_omni.tiny.weights import build_model, damp_rows, published, write_shards

# Far below the scale of the other logits, yet without ties.
_NEVER = 0.1
_SAYABLE = {*WORDS, *".,?!"}


def write_tiny(directory: str | os.PathLike[str], *, seed: int = 0, **shape: object) -> None:
    """Writes a checkpoint of about 0.7 M parameters, in float32, with tokenizer and processor files, into `directory`.

    It differs from a published one in its sizes only, and transformers reads it too. The same arguments write the same
    checkpoint. shape: fields of `TinyShape` that differ from their defaults.

    Raises ConfigError for a field that `TinyShape` lacks or a value of a wrong type.
    """
    sizes = _shape(shape)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        tokenizer = write_tokenizer(folder, sizes.max_positions)
        token_ids = _token_ids(tokenizer)
        # Published vocabularies end with unused ids, too.
        vocab_size = -(-len(tokenizer) // 64) * 64
        config = model_config(sizes, token_ids, vocab_size)
        model = build_model(config, seed)
    _tame_heads(model, tokenizer, config, sizes)
    write_shards(folder, published(model.state_dict()), sizes.max_shard_size)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(token_ids))
    _write_json(folder / "preprocessor_config.json", preprocessor_config())


def _shape(fields: dict[str, object]) -> TinyShape:
    try:
        return msgspec.convert(fields, TinyShape)
    except msgspec.ValidationError as error:
        known = ", ".join(TinyShape.__struct_fields__)
        raise ConfigError("tiny", str(error), f"the fields are {known}") from error


def _token_ids(tokenizer: Qwen2Tokenizer) -> dict[str, int]:
    ids: dict[str, int] = tokenizer.get_vocab()
    return {name: ids[name] for name in (*SPECIAL_TOKENS, *ROLE_WORDS)}


def _tame_heads(
    model: Qwen3OmniMoeForConditionalGeneration, tokenizer: Qwen2Tokenizer, config: Json, shape: TinyShape
) -> None:
    """Lets the thinker say words, and both language models stop as readily as the shape says."""
    head = model.thinker.lm_head
    stop = config["im_end_token_id"]
    texts = tokenizer.batch_decode([[i] for i in range(head.out_features)], skip_special_tokens=True)
    damp_rows(head, {i for i, text in enumerate(texts) if text.strip() not in _SAYABLE} - {stop}, _NEVER)
    damp_rows(head, {stop}, shape.stop_gain)
    if shape.talker:
        damp_rows(model.talker.codec_head, {config["talker_config"]["codec_eos_token_id"]}, shape.codec_stop_gain)


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
