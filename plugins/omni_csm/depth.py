"""The depth decoder: a small decoder that runs once per code group, within one step of the backbone.

Shape legend: R rows, D depth width, B backbone width, G code groups, V codes of a group.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from omni_ar.layers import FrameLayers, Linear, first_pass, summed_embeddings
from omni_ar.model import Codes, DrawCode
from omni_csm.config import CsmConfig


class FrameEmbedding(nn.Embedding):
    """A frame's embedding is the sum of its codes' embeddings; each group has its own range of the table."""

    def __init__(self, config: CsmConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config.num_groups * config.vocab_size, config.backbone.width, device=device, dtype=dtype)
        self._size = config.vocab_size

    def code(self, codes_R: Tensor, group: int) -> Tensor:
        """The input embedding of the codes of one group, `[R, B]`."""
        return summed_embeddings(codes_R[:, None], self._tables[group : group + 1])

    def forward(self, codes_RG: Tensor) -> Tensor:
        """The sum of the input embeddings of a frame's codes, `[R, B]`, computed in fp32 for every dtype."""
        return summed_embeddings(codes_RG, self._tables)

    @property
    def _tables(self) -> Sequence[Tensor]:
        tables: Sequence[Tensor] = self.weight.split(self._size)
        return tables


class DepthDecoder(FrameLayers):
    """Predicts groups 1 to G - 1 from the backbone's hidden state and code 0, each with its own head."""

    def __init__(self, config: CsmConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        depth = config.depth
        super().__init__(depth, device=device, dtype=dtype)
        self.embed_tokens = FrameEmbedding(config, device=device, dtype=dtype)
        self.inputs_embeds_projector = Linear(
            config.backbone.width, depth.width, bias=False, device=device, dtype=dtype
        )
        heads = torch.empty(config.num_groups - 1, depth.width, config.vocab_size, device=device, dtype=dtype)
        self.codebooks_head: nn.Parameter = nn.Parameter(heads)
        self.heads = nn.ModuleList()

    def turn_heads(self) -> None:
        """Transposes the heads after loading: published as `[D, V]` each, they are read as `[V, D]`, whose rows are
        aligned."""
        for head_DV in self.codebooks_head.detach():
            head = Linear(head_DV.shape[0], head_DV.shape[1], bias=False, device="meta")
            head.weight = nn.Parameter(head_DV.t().contiguous(), requires_grad=False)
            self.heads.append(head)
        del self.codebooks_head

    def predict(self, hidden_RB: Tensor, code0_R: Tensor, embed: FrameEmbedding, draw: DrawCode) -> Codes:
        """Predicts the frame that `code0_R` begins. embed: the backbone's embedding; the next input is the sum of the
        codes' embeddings."""

        def enter(code_R: Tensor, group: int) -> Tensor:
            entered_RD: Tensor = self.inputs_embeds_projector(self.embed_tokens.code(code_R, group))
            return entered_RD

        first_TD = self.inputs_embeds_projector(first_pass(hidden_RB, self.embed_tokens.code(code0_R, 0)))
        codes_RG = torch.stack([code0_R, *self.run(first_TD, self.heads, draw, enter)], 1)
        return Codes(codes_RG, embed(codes_RG))
