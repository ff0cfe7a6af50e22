"""Layers over frames: as the stage's own decoder layers over sequences of a frame's length, position by position."""

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni_ar.layers import DecoderConfig, DecoderLayers, FrameLayers, FrequencyScaling, first_pass
from omni_ar.model import ArModel, ArShape, Batch, NextTokens, PromptTokens
from tests.support.one_row import OneRow

ROWS, GROUPS, CODES = 3, 6, 11
CPU = torch.device("cpu")


CONFIG = DecoderConfig(
    width=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=40,
    max_positions=64,
    rope_theta=100.0,
    rms_norm_eps=1e-5,
)
SCALED = FrequencyScaling(factor=8.0, slow_turns=0.5, fast_turns=2.0, trained_positions=32)


class Plain(ArModel):
    """The stage's layers, whose logits are the hidden states."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self._config = shape
        self.decoder = DecoderLayers(shape, device=CPU, dtype=torch.float32)

    @property
    def shape(self) -> ArShape:
        config = self._config
        return ArShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            hidden_width=config.width,
            vocab_size=config.width,
            max_positions=config.max_positions,
        )

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        return prompt.columns_CT[0]

    def embed_next(self, step: NextTokens) -> Tensor:
        return step.codes_RD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        hidden_TD: Tensor = self.decoder(x_TD, batch)
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return hidden_RD


@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, qk_norm=False, rope_scaling=SCALED), replace(CONFIG, attention_bias=True)]
)
def test_each_group_is_predicted_from_all_positions_before_it(config: DecoderConfig):
    generator = torch.Generator().manual_seed(3)
    layers = FrameLayers(config, device=CPU, dtype=torch.float32)
    plain = Plain(config)
    for parameter in layers.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() == 1 else 0.3)
    plain.decoder.load_state_dict(layers.state_dict())
    table_GCD = torch.randn(GROUPS, CODES, 24, generator=generator)
    heads_GDC = torch.randn(GROUPS, 24, CODES, generator=generator)
    hidden_RD, code0_R = torch.randn(ROWS, 24, generator=generator), torch.tensor([3, 9, 3])
    states: list[Tensor] = []
    embedded: list[int] = []

    def choose(hidden_RD: Tensor, group: int) -> Tensor:
        states.append(hidden_RD.clone())
        return (hidden_RD @ heads_GDC[group]).argmax(-1)

    def embed(code_R: Tensor, group: int) -> Tensor:
        embedded.append(group)
        return table_GCD[group, code_R]

    with torch.inference_mode():
        codes = layers.run(first_pass(hidden_RD, table_GCD[0, code0_R]), GROUPS, choose, embed)
    codes_RG = torch.stack([code0_R, *codes], 1)
    assert embedded == list(range(1, GROUPS - 1)), "the last group's codes are nobody's input"
    assert len(set(map(tuple, codes_RG.tolist()))) == ROWS
    for row in range(ROWS):
        x_GD = torch.stack([hidden_RD[row], *(table_GCD[group, codes_RG[row, group]] for group in range(GROUPS - 1))])
        alone = OneRow(plain)
        wanted = alone.run(x_GD[:2], torch.arange(2)[None])[1:]
        for group in range(2, GROUPS):
            wanted = torch.cat([wanted, alone.run(x_GD[group : group + 1], torch.tensor([[group]]))])
        given = torch.stack([state_RD[row] for state_RD in states])
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
