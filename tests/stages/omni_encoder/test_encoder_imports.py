"""A start imports and builds towers without slow modules: transformers, and those that torch needs to compile or cut tensors."""

import os
import subprocess
import sys

import pytest

from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS

STAGE = REPOSITORY / "stages/omni_encoder"
SLOW = ("transformers", "torch._dynamo", "torch.distributed.tensor", "sympy")
MODULES = [
    ".".join(path.relative_to(STAGE.parent).with_suffix("").parts)
    for path in sorted(STAGE.rglob("*.py"))
    # Kernels import triton, where they run.
    if path.stem not in ("__init__", "kernel")
]
BUILD = """
import torch
from omni_encoder.towers.configs import ClipTowerConfig, RotaryParameters

clips = dict(
    num_mel_bins=4, d_model=4, encoder_layers=1, encoder_attention_heads=1, encoder_ffn_dim=2, activation_function="gelu",
    n_window=2, output_dim=2,
)
pictures = dict(
    depth=1, hidden_size=4, hidden_act="gelu", intermediate_size=2, num_heads=1, patch_size=2, spatial_merge_size=2,
    temporal_patch_size=2, out_hidden_size=2, rope_parameters=RotaryParameters(rope_theta=10.0),
)
towers = [
    (omni_encoder.towers.conv1d_clips.Conv1dClipEncoder, ClipTowerConfig(**clips)),
    (
        omni_encoder.towers.conv2d_clips.Conv2dClipEncoder,
        omni_encoder.towers.conv2d_clips.Conv2dClipConfig(
            **clips, n_window_infer=4, conv_chunksize=2, downsample_hidden_size=2
        ),
    ),
    (
        omni_encoder.towers.deepstack_pictures.DeepstackPictureEncoder,
        omni_encoder.towers.deepstack_pictures.DeepstackPictureConfig(
            **pictures, num_position_embeddings=4, deepstack_visual_indexes=(0,)
        ),
    ),
    (
        omni_encoder.towers.windowed_pictures.WindowedPictureEncoder,
        omni_encoder.towers.windowed_pictures.WindowedPictureConfig(**pictures, window_size=4, fullatt_block_indexes=()),
    ),
]
for kind, config in towers:
    tower = omni_encoder.towers.loading.unfilled(lambda: kind(config), torch.device("cpu"), torch.bfloat16)
    assert not list(tower.buffers())
    assert all(parameter.dtype == torch.bfloat16 for parameter in tower.parameters())
"""


def slow_modules(program: str) -> set[str]:
    """Those of `SLOW` that are imported after `program`, which runs in a fresh interpreter."""
    program = f"import sys\n{program}\nprint(*(name for name in {SLOW!r} if name in sys.modules))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(STAGE.parent)))}
    command = [sys.executable, "-c", program]
    return set(subprocess.check_output(command, env=environment, text=True, timeout=PATIENCE_SECONDS).split())


def test_towers_are_imported_and_built_without_slow_modules() -> None:
    assert len(MODULES) > 20
    assert not slow_modules("\n".join(f"import {module}" for module in MODULES) + BUILD)


@pytest.mark.parametrize("module", ["transformers", "sympy"])
def test_planted_fault_a_slow_import_is_found(module: str) -> None:
    assert module in slow_modules(f"import {module}")


@pytest.mark.parametrize("family", ["omni_qwen3_omni", "omni_qwen2_5_omni"])
def test_families_take_no_tower_of_transformers(family: str) -> None:
    assert "transformers" not in (REPOSITORY / "plugins" / family / "encoders.py").read_text()
