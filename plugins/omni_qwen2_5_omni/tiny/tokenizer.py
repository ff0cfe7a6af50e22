"""The family's special tokens."""

from omni.tiny import ChatTokens

_SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|AUDIO|> <|audio_bos|> <|audio_eos|> <|vision_bos|> <|vision_eos|> "
    "<|vision_pad|> <|IMAGE|> <|VIDEO|>"
)
TOKENS = ChatTokens(
    special=tuple(_SPECIAL.split()),
    audio=("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"),
    image=("<|vision_bos|>", "<|IMAGE|>", "<|vision_eos|>"),
    video=("<|vision_bos|>", "<|VIDEO|>", "<|vision_eos|>"),
    default_system="You are the first",
)
