"""Frame-wise code prediction: a small decoder that runs once per code group, within one step of a larger one.

Shape legend: R rows, D width, G code groups.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from omni_ar.layers.decoder import DecoderConfig
from omni_ar.layers.frame_layers import FrameLayers, first_pass
from omni_ar.layers.linear import Factory, Linear
from omni_ar.model import Codes, DrawCode


class CodePredictor(nn.Module):
    """Predicts groups 1 to G - 1 from a hidden state and the embedding of group 0. Each group has its own table and head.
    Parameters: `model.codec_embedding`, `model.layers`, `model.norm` and `lm_head`."""

    def __init__(self, config: DecoderConfig, vocab_size: int, num_groups: int, **factory: Unpack[Factory]) -> None:
        super().__init__()
        self._groups = num_groups
        self.model = _Decoder(config, vocab_size, num_groups, **factory)
        heads = (Linear(config.width, vocab_size, bias=False, **factory) for _ in range(num_groups - 1))
        self.lm_head = nn.ModuleList(heads)

    def predict(self, hidden_RD: Tensor, code0_R: Tensor, code0_RD: Tensor, draw: DrawCode) -> Codes:
        """Predicts the frame that begins with `code0_R`, whose embedding is `code0_RD`. The next input's codec part is
        the sum of the codes' embeddings."""
        embedded = [code0_RD]

        def choose(last_RD: Tensor, group: int) -> Tensor:
            return draw(self.lm_head[group - 1](last_RD), group)

        def embed(code_R: Tensor, group: int) -> Tensor:
            embedded.append(self.model.codec_embedding[group - 1](code_R))
            return embedded[-1]

        codes = self.model.run(first_pass(hidden_RD, code0_RD), self._groups, choose, embed)
        embed(codes[-1], self._groups - 1)
        next_RD = code0_RD
        for code_RD in embedded[1:]:
            next_RD = next_RD + code_RD
        return Codes(torch.stack([code0_R, *codes], 1), next_RD)

    def embed(self, codes_RG: Tensor, embedding0_RD: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames, summed in the order of `predict`. embedding0_RD: embeddings of the first codes."""
        next_RD = embedding0_RD
        for group in range(1, codes_RG.shape[1]):
            next_RD = next_RD + self.model.codec_embedding[group - 1](codes_RG[:, group])
        return next_RD


class _Decoder(FrameLayers):
    """An embedding table per predicted group, layers, final norm."""

    def __init__(self, config: DecoderConfig, vocab_size: int, num_groups: int, **factory: Unpack[Factory]) -> None:
        super().__init__(config, **factory)
        tables = (nn.Embedding(vocab_size, config.width, **factory) for _ in range(num_groups - 1))
        self.codec_embedding = nn.ModuleList(tables)
