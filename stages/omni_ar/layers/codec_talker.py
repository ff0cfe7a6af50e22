"""A complete model that generates codec frames, as a base class for families.

Shape legend: T tokens, R rows, D width, V vocabulary, G code groups.
"""

from typing import Unpack

from torch import Tensor, nn

from omni_ar.layers.code_predictor import CodePredictor
from omni_ar.layers.decoder import DecoderConfig, DecoderLayers
from omni_ar.layers.linear import FactoryKwargs, Linear
from omni_ar.layers.text_model import decoder_shape
from omni_ar.model import ArShape, Batch, CodecModel, Codes, DrawCode, NextTokens


class CodecTalker(CodecModel):
    """A decoder whose tokens are first codes, and a `CodePredictor` for the others. The family defines the embedding of prompts. A
    step's input is the sum of the last frame's embeddings, unless the family adds to it. vocab_size: number of tokens, including
    those that are not codes. codes: number of codes of each other group. Parameters: `codec_embedding`, `decoder`, `codec_head`,
    `code_predictor`."""

    def __init__(
        self,
        config: DecoderConfig,
        predictor: DecoderConfig,
        *,
        vocab_size: int,
        codes: int,
        num_groups: int,
        **factory: Unpack[FactoryKwargs],
    ) -> None:
        super().__init__()
        self._decoder_config, self._num_groups = config, num_groups
        # Whole in a partition too, like the head: they have a few thousand rows. Code 0 is embedded within the step, for the
        # predictor, and a further collective would take longer than the cut saves.
        self.codec_embedding = nn.Embedding(vocab_size, config.width, **factory)
        self.decoder = DecoderLayers(config, **factory)
        self.codec_head = Linear(config.width, vocab_size, bias=False, **factory)
        self.code_predictor = CodePredictor(predictor, codes, num_groups, **factory)

    @property
    def shape(self) -> ArShape:
        return decoder_shape(self._decoder_config, self.codec_head.out_features)

    @property
    def num_groups(self) -> int:
        return self._num_groups

    @property
    def next_width(self) -> int:
        return self._decoder_config.width

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        logits_RV: Tensor = self.codec_head(hidden_RD)
        return logits_RV

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        return self.code_predictor.predict(hidden_RD, code0_R, self.codec_embedding(code0_R), draw)

    def embed_codes(self, codes_RG: Tensor) -> Tensor:
        return self.code_predictor.embed(codes_RG, self.codec_embedding(codes_RG[:, 0]))
