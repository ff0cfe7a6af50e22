"""The family's special tokens."""

from pathlib import Path

from transformers import Qwen2Tokenizer

from omni.tiny import ChatTokens
from omni.tiny import write_tokenizer as write

_SPECIAL = """
<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|>
<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response>
<think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>
<|audio_pad|>
"""
TOKENS = ChatTokens(
    special=tuple(_SPECIAL.split()),
    plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    audio=("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
    image=("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    video=("<|vision_start|>", "<|video_pad|>", "<|vision_end|>"),
)


def write_tokenizer(folder: Path, max_length: int) -> Qwen2Tokenizer:
    """Writes the tokenizer with its chat template. Returns it, read back."""
    tokenizer: Qwen2Tokenizer = write(folder, TOKENS, Qwen2Tokenizer, "Qwen3OmniMoeProcessor", max_length)
    return tokenizer
