"""The backbone: a turn's text and sound in, codec frames out, with the depth decoder inside each step.

Shape legend: T prompt tokens, R rows, D width, G code groups, n frames of an embedding.
"""

import torch
from torch import Tensor, nn

from omni.checkpoint import load_weights
from omni.stage import StageContext
from omni_ar.layers import DecoderLayers, Linear
from omni_ar.layers.text_model import decoder_shape
from omni_ar.model import ArShape, Batch, CodecModel, Codes, DrawCode, FrameEnd, NextTokens, PromptTokens
from omni_csm.config import CsmConfig, read_config
from omni_csm.depth import DepthDecoder, FrameEmbedding


class Backbone(CodecModel):
    """Prompt column: the text id of each position. Multimodal embedding `audio`: `codes`, int64 `[n, G]`, a frame each."""

    def __init__(self, config: CsmConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self._config = config
        width = config.backbone.width
        self.embed_text = nn.Embedding(config.text_vocab_size, width, device=device, dtype=dtype)
        self.decoder = DecoderLayers(config.backbone, device=device, dtype=dtype)
        self.depth_decoder = DepthDecoder(config, device=device, dtype=dtype)
        self.embed_frame = FrameEmbedding(config, device=device, dtype=dtype)
        self.lm_head = Linear(width, config.vocab_size, bias=False, device=device, dtype=dtype)

    @property
    def shape(self) -> ArShape:
        return decoder_shape(self._config.backbone, self._config.vocab_size)

    @property
    def num_groups(self) -> int:
        return self._config.num_groups

    @property
    def frame_end(self) -> FrameEnd:
        """The end of a frame. The last code is ignored, as in transformers. A frame of end codes only is not part of the sound."""
        return FrameEnd(self._config.codec_eos, self.num_groups - 1)

    @property
    def next_width(self) -> int:
        return self._config.backbone.width

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        ids_T = prompt.columns_CT[0]
        end_1G = ids_T.new_full((1, self.num_groups), self._config.codec_eos)
        ends_T1 = (ids_T == self._config.audio_eos)[:, None]
        x_TD = torch.where(ends_T1, self.embed_frame(end_1G), self.embed_text(ids_T))
        for embedding in prompt.embeddings:
            x_TD.index_copy_(0, embedding.tokens_n, self.embed_frame(embedding.tensors["codes"]))
        return x_TD

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden_RD)
        return logits

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        return self.depth_decoder.predict(hidden_RD, code0_R, self.embed_frame, draw)

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        embedded_RD: Tensor = self.embed_frame(codes_RG)
        return embedded_RD


_TABLES = ("backbone_model.embed_tokens.embed_audio_tokens.", "depth_decoder.model.embed_tokens.")


def build(context: StageContext) -> Backbone:
    """The checkpoint's backbone and depth decoder on the context's device."""
    config = read_config(context.checkpoint)
    model = Backbone(config, device=context.device.torch_device, dtype=context.dtype)
    depth = model.depth_decoder
    if _shared_table(context, config):
        depth.embed_tokens = model.embed_frame
    prefixes = {
        _TABLES[0]: "embed_frame.",
        "backbone_model.": "decoder.",
        "depth_decoder.model.": "depth_decoder.",
        "depth_decoder.codebooks_head.weight": "depth_decoder.codebooks_head",
        "embed_text_tokens.": "embed_text.",
        "lm_head.": "lm_head.",
    }
    load_weights(model, context, prefixes)
    depth.turn_heads()
    return model


def _shared_table(context: StageContext, config: CsmConfig) -> bool:
    """Whether the backbone and the depth decoder share a table; published files then contain it once."""
    if context.load_format == "dummy":
        return config.tied
    there = [context.checkpoint.has(f"{prefix}weight") for prefix in _TABLES]
    return not all(there)
