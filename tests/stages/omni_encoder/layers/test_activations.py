"""Activations by the names of published configs, against transformers' functions of these names."""

import pytest
import torch
from transformers.activations import ACT2FN

from omni.checkpoint.checks import Section
from omni.errors import CheckpointError
from omni_encoder.layers import ACTIVATIONS
from omni_encoder.towers.checks import check_clip_tower, check_picture_tower

CLIP_TOWER = {
    "d_model": 8,
    "encoder_ffn_dim": 4,
    "output_dim": 4,
    "encoder_layers": 1,
    "num_mel_bins": 4,
    "n_window": 2,
    "encoder_attention_heads": 2,
    "max_source_positions": 4,
    "activation_function": "gelu",
}
PICTURE_TOWER = {
    "hidden_size": 8,
    "intermediate_size": 4,
    "out_hidden_size": 4,
    "depth": 1,
    "patch_size": 2,
    "num_heads": 2,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "hidden_act": "gelu",
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10_000.0},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-12, 12, 4001).to(dtype)
    assert torch.equal(ACTIVATIONS[name](x), ACT2FN[name](x))


def test_planted_fault_another_activation() -> None:
    """The approximations of GELU differ on these numbers."""
    x = torch.linspace(-12, 12, 4001)
    names = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu")
    assert all(not torch.equal(ACTIVATIONS[a](x), ACTIVATIONS[b](x)) for a in names for b in names if a < b)


@pytest.mark.parametrize("name", ["gelu_10", "none", "", None, ["gelu"]], ids=str)
def test_an_unknown_activation_is_refused_by_its_field(name: object) -> None:
    check_clip_tower(Section(CLIP_TOWER, "audio_config"), 4, stride=2)
    with pytest.raises(CheckpointError, match=r"^config\.json: audio_config\.activation_function: .*not supported"):
        check_clip_tower(Section(CLIP_TOWER | {"activation_function": name}, "audio_config"), 4, stride=2)
    check_picture_tower(Section(PICTURE_TOWER, "vision_config"), 4)
    with pytest.raises(CheckpointError, match=r"^config\.json: vision_config\.hidden_act: .*not supported"):
        check_picture_tower(Section(PICTURE_TOWER | {"hidden_act": name}, "vision_config"), 4)


@pytest.mark.parametrize("name", ["patch_size", "temporal_patch_size"])
def test_patches_that_are_not_square_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^config\.json: vision_config\.{name}: is \[2, 2\], which"):
        check_picture_tower(Section(PICTURE_TOWER | {name: [2, 2]}, "vision_config"), 4)


def test_a_width_without_a_second_wavelength_is_refused() -> None:
    """Its positions would be divided by zero."""
    with pytest.raises(CheckpointError, match=r"^config\.json: audio_config\.d_model: is 2, below 4"):
        check_clip_tower(Section(CLIP_TOWER | {"d_model": 2}, "audio_config"), 4, stride=2)
