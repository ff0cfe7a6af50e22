"""What a checkpoint's config must say for a decoder to be built from it."""

import pytest
from transformers import Qwen3MoeConfig

from omni.errors import CheckpointError
from omni_ar.layers.decoder import decoder_config


@pytest.mark.parametrize(("experts", "top_k"), [(4, 5), (4, 0), (8193, 2)])
def test_experts_that_no_token_could_be_sent_to_are_refused(experts: int, top_k: int):
    config = Qwen3MoeConfig(num_hidden_layers=1, num_experts=experts, num_experts_per_tok=top_k)
    with pytest.raises(CheckpointError) as caught:
        decoder_config(config)
    assert str(caught.value).startswith(
        f"config.json: num_experts_per_tok: is {top_k} of {experts} experts; use at least 1"
    )


def test_all_experts_for_every_token_are_fine():
    config = decoder_config(Qwen3MoeConfig(num_hidden_layers=1, num_experts=4, num_experts_per_tok=4))
    assert (config.num_experts, config.top_k) == (4, 4)
