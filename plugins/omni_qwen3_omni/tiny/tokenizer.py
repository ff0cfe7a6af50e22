"""The tokenizer files of a tiny checkpoint: byte-level BPE over a few dozen words, with the family's special tokens."""

import json
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

# In the published order; their ids follow the ordinary vocabulary.
_SPECIAL = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response>
<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>
"""
ROLE_WORDS = ("system", "user", "assistant")
_WORD_LIST = """
the a and of to in is it you that was for on are with as this have from one had by but not what all were we when your
can said there use an each which she do how their if will up other about out many then them these so some her would make
like him into time has look two more write go see number no way could people my than first water been call who its now
find long down day did get come made may part blue red green square circle picture sound voice hello world
"""
SPECIAL_TOKENS = tuple(_SPECIAL.split())
WORDS = tuple(_WORD_LIST.split())

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}"
    "{% elif part.type == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(directory: Path, max_length: int) -> Qwen2Tokenizer:
    """Writes vocab.json, merges.txt, tokenizer_config.json and chat_template.json; returns the tokenizer read back."""
    vocabulary, merges = _vocabulary()
    special = {str(len(vocabulary) + i): _added_token(token) for i, token in enumerate(SPECIAL_TOKENS)}
    roles = {
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    config = {
        "added_tokens_decoder": special,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "extra_special_tokens": roles,
        "model_max_length": max_length,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen3OmniMoeProcessor",
    }
    (directory / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}), encoding="utf-8")
    tokenizer: Qwen2Tokenizer = Qwen2Tokenizer.from_pretrained(directory)
    return tokenizer


def _vocabulary() -> tuple[dict[str, int], list[str]]:
    """Bytes, then each word and its beginnings. The template's words come first, so that no later merge splits them."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    merges: list[str] = []
    for word in (*ROLE_WORDS, *(f"Ġ{word}" for word in WORDS)):
        for end in range(1, len(word)):
            merge = f"{word[:end]} {word[end]}"
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
                merges.append(merge)
    return vocabulary, merges


def _added_token(token: str) -> dict[str, object]:
    plain = token.startswith(("<tool", "</tool", "<think", "</think"))
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": not plain}
