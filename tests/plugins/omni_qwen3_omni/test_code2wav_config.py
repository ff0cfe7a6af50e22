"""The vocoder's shape as read from a published file."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from omni.errors import CheckpointError
from omni_qwen3_omni.code2wav import Code2WavConfig

RELEASED = {
    "codebook_dim": 512,
    "model_type": "qwen3_omni_moe_code2wav",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "rope_theta": 10000,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}


def test_defaults_are_those_of_the_file_format() -> None:
    ours = Code2WavConfig.from_checkpoint({})
    assert ours == Code2WavConfig.from_checkpoint(Qwen3OmniMoeCode2WavConfig().to_dict())
    assert ours == Code2WavConfig()


def test_released_numbers() -> None:
    config = Code2WavConfig.from_checkpoint(RELEASED)
    assert (config.samples_per_frame, config.lookahead, config.min_first_frames) == (1920, 555, 1)
    assert config.attention_head_dim == 64


@pytest.mark.parametrize(
    "raw", [{"rope_theta": 500}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 7}]
)
def test_rope_theta_is_read_where_either_file_format_keeps_it(raw: dict[str, object]) -> None:
    assert Code2WavConfig.from_checkpoint(raw).rope_theta == 500.0


@settings(max_examples=30)
@given(
    rates=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    ratios=st.lists(st.integers(1, 3), max_size=2),
    more=st.integers(0, 2),
)
def test_lengths_are_those_of_the_reference(rates: list[int], ratios: list[int], more: int) -> None:
    """From the fewest frames on; with one frame fewer the reference cannot decode at all."""
    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    shape |= {"intermediate_size": 8, "decoder_dim": 8, "num_quantizers": 2, "codebook_size": 4}
    reference_config = Qwen3OmniMoeCode2WavConfig(**shape, upsample_rates=rates, upsampling_ratios=ratios)
    config = Code2WavConfig.from_checkpoint(reference_config.to_dict())
    reference = Qwen3OmniMoeCode2Wav._from_config(reference_config)

    def length(frames: int) -> int:
        return int(reference(torch.zeros(1, 2, frames, dtype=torch.int64)).shape[2])

    fewest = config.min_first_frames
    expected = (fewest + more) * config.samples_per_frame - config.lookahead
    assert expected >= 0
    if expected:
        assert length(fewest + more) == expected
    if fewest > 1:
        with pytest.raises(RuntimeError):
            length(fewest - 1)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ({"hidden_size": "wide"}, r"hidden_size"),
        ({"upsample_rates": 8}, r"upsample_rates"),
        ({"upsample_rates": [8, 0]}, r"code2wav_config\.upsample_rates: has a factor below 1"),
        ({"upsampling_ratios": [0]}, r"code2wav_config\.upsampling_ratios: has a factor below 1"),
        ({"sliding_window": 0}, r"code2wav_config\.sliding_window: is 0"),
        ({"num_quantizers": -1}, r"code2wav_config\.num_quantizers: is -1"),
        ({"num_key_value_heads": 3}, r"code2wav_config\.num_key_value_heads: .*16"),
        ({"head_dim": 5}, r"code2wav_config\.head_dim: is odd: 5"),
        ({"decoder_dim": 8}, r"code2wav_config\.decoder_dim: is 8"),
        ({"hidden_act": "relu"}, r"code2wav_config\.hidden_act: is 'relu', not 'silu'"),
        ({"rope_parameters": "default"}, r"code2wav_config\.rope_parameters: is not a table"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"code2wav_config\.rope_parameters\.rope_type: is 'yarn'"),
    ],
)
def test_a_wrong_file_is_refused_by_field(raw: dict[str, object], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        Code2WavConfig.from_checkpoint(raw)
