"""The sizes of tiny checkpoints."""

from typing import Any

import msgspec

from omni.tiny.settings import decoder_settings


class SpeakingShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes that a text model with a talker behind it has; families add their own.

    talker: False gives the layout of a checkpoint that writes text only.
    stop_gain, codec_stop_gain: how readily text model and talker stop; 0 for never, 1 as any other token.
    """

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    hidden_size: int = 64
    max_positions: int = 4096
    stop_gain: float = 1.0
    vision_layers: int = 3
    audio_layers: int = 2
    talker: bool = True
    talker_layers: int = 2
    talker_heads: int = 3
    talker_kv_heads: int = 1
    talker_head_dim: int = 16
    talker_hidden_size: int = 48
    codec_stop_gain: float = 1.3

    def text_settings(self, head_dim: int) -> dict[str, Any]:
        """What a config says of the text model's layers."""
        return decoder_settings(self.layers, self.heads, self.kv_heads, head_dim, self.hidden_size, self.max_positions)

    def talker_settings(self) -> dict[str, Any]:
        """What a config says of the talker's layers."""
        head_dim, width = self.talker_head_dim, self.talker_hidden_size
        return decoder_settings(
            self.talker_layers, self.talker_heads, self.talker_kv_heads, head_dim, width, self.max_positions
        )
