"""Frame-wise code prediction: a small decoder that runs once per code group, within one step of a larger one.

Shape legend: R rows, D width, G code groups.
"""

from typing import Unpack

import torch
from torch import Tensor, nn

from omni_ar.kernels.embedding import summed_embeddings
from omni_ar.layers.decoder import DecoderConfig
from omni_ar.layers.frame_layers import FrameLayers, first_pass
from omni_ar.layers.linear import FactoryKwargs, Linear
from omni_ar.model import Codes, DrawCode


class CodePredictor(nn.Module):
    """Predicts groups 1 to G - 1 from a hidden state and the embedding of group 0. Each group has its own table and head.
    Parameters: `model.codec_embedding`, `model.layers`, `model.norm` and `lm_head`."""

    def __init__(
        self, config: DecoderConfig, vocab_size: int, num_groups: int, **factory: Unpack[FactoryKwargs]
    ) -> None:
        super().__init__()
        self.model = _Decoder(config, vocab_size, num_groups, **factory)
        heads = (Linear(config.width, vocab_size, bias=False, **factory) for _ in range(num_groups - 1))
        self.lm_head = nn.ModuleList(heads)

    def predict(self, hidden_RD: Tensor, code0_R: Tensor, code0_RD: Tensor, draw: DrawCode) -> Codes:
        """Predicts the frame that begins with `code0_R`, whose embedding is `code0_RD`. The codec part of the next input is the sum
        of the codes' embeddings."""

        def embed(code_R: Tensor, group: int) -> Tensor:
            return summed_embeddings(code_R[:, None], self._tables[group - 1 : group])

        codes = self.model.run(first_pass(hidden_RD, code0_RD), self.lm_head, draw, embed)
        codes_RG = torch.stack([code0_R, *codes], 1)
        return Codes(codes_RG, self.embed(codes_RG, code0_RD))

    def embed(self, codes_RG: Tensor, embedding0_RD: Tensor) -> Tensor:
        """`Codes.next_RD` of known frames. embedding0_RD: embeddings of the first codes."""
        return summed_embeddings(codes_RG[:, 1:], self._tables, embedding0_RD)

    @property
    def _tables(self) -> list[Tensor]:
        return [table.weight for table in self.model.codec_embedding if isinstance(table, nn.Embedding)]


class _Decoder(FrameLayers):
    """An embedding table per predicted group, layers, final norm."""

    def __init__(
        self, config: DecoderConfig, vocab_size: int, num_groups: int, **factory: Unpack[FactoryKwargs]
    ) -> None:
        super().__init__(config, **factory)
        tables = (nn.Embedding(vocab_size, config.width, **factory) for _ in range(num_groups - 1))
        self.codec_embedding = nn.ModuleList(tables)
