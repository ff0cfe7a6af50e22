"""The towers against transformers' classes with the same random weights: every operation in the same order, so equal to the bit."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface
from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as configs_2_5
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as hf_2_5
from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as configs_3
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as hf_3

from omni_encoder.kernels.segment_attention import reference
from omni_encoder.layers import LearnedGrid, PatchRotation, clip_layer, positions
from omni_encoder.model import EncoderModel
from omni_encoder.segments import Segments, segment_bounds
from omni_encoder.towers import conv1d_clips, conv2d_clips, deepstack_pictures, windowed_pictures
from omni_encoder.towers.configs import ClipTowerConfig, tower_config
from omni_encoder.towers.loading import unfilled
from tests.support.tower import encode

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class TowerKind:
    """sizes: of a tiny tower. media: frames of clips, or grids of pictures."""

    theirs: Any
    their_config: Any
    ours: Callable[[Any], EncoderModel]
    our_config: Any
    sizes: Mapping[str, object]
    media: Sequence[Any]
    pictures: bool = False


CLIP_SIZES = {
    "num_mel_bins": 20,
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "output_dim": 12,
    "n_window": 10,
}
PICTURE_SIZES = {
    "depth": 4,
    "hidden_size": 24,
    "num_heads": 3,
    "intermediate_size": 20,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 12,
}
KINDS = {
    "audio_3": TowerKind(
        hf_3.Qwen3OmniMoeAudioEncoder,
        configs_3.Qwen3OmniMoeAudioEncoderConfig,
        conv2d_clips.Conv2dClipEncoder,
        conv2d_clips.Conv2dClipConfig,
        CLIP_SIZES | {"n_window": 50, "n_window_infer": 300, "downsample_hidden_size": 4, "conv_chunksize": 500},
        (730, 100, 900),
    ),
    "vision_3": TowerKind(
        hf_3.Qwen3OmniMoeVisionEncoder,
        configs_3.Qwen3OmniMoeVisionEncoderConfig,
        deepstack_pictures.DeepstackPictureEncoder,
        deepstack_pictures.DeepstackPictureConfig,
        PICTURE_SIZES | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 81},
        ((1, 2, 6), (3, 4, 2), (2, 6, 4)),
        pictures=True,
    ),
    "audio_2_5": TowerKind(
        hf_2_5.Qwen2_5OmniAudioEncoder,
        configs_2_5.Qwen2_5OmniAudioEncoderConfig,
        conv1d_clips.Conv1dClipEncoder,
        ClipTowerConfig,
        CLIP_SIZES,
        (87, 3, 120),
    ),
    "vision_2_5": TowerKind(
        hf_2_5.Qwen2_5OmniVisionEncoder,
        configs_2_5.Qwen2_5OmniVisionEncoderConfig,
        windowed_pictures.WindowedPictureEncoder,
        windowed_pictures.WindowedPictureConfig,
        PICTURE_SIZES | {"window_size": 16, "fullatt_block_indexes": [1, 3]},
        ((1, 16, 8), (2, 10, 12), (1, 2, 2)),
        pictures=True,
    ),
}


def attend_masked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers that masks other segments: bits differ from those of attention segment by segment."""
    bounds = torch.from_numpy(segment_bounds(cu_seq_lens_q.diff().tolist()))
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return reference.attend_segments(q, k, v, bounds, None, scaling)[None], None


@torch.no_grad()
def enliven(tower: nn.Module, noise: torch.Generator) -> None:
    """Weights under which every part is heard."""
    for name, parameter in tower.named_parameters():
        values = torch.randn(parameter.shape, generator=noise)
        if parameter.dim() > 1 and "pos_embed" not in name:
            values *= parameter[0].numel() ** -0.5
        elif name.endswith("weight"):
            values = 1 + values / 4
        parameter.copy_(values)


@dataclass(frozen=True)
class Pair:
    """A tower of transformers and ours, with the same weights, and media for both."""

    kind: TowerKind
    theirs: Any
    ours: Any
    media: Sequence[Any]
    features: Sequence[Tensor]

    @classmethod
    def of(
        cls,
        name: str,
        dtype: torch.dtype,
        media: Sequence[Any] | None,
        sizes: Mapping[str, object],
        fault: Mapping[str, object] | None = None,
    ) -> "Pair":
        """media, sizes: other than the kind's. fault: sizes that ours alone has."""
        kind, noise = KINDS[name], torch.Generator().manual_seed(7)
        media = kind.media if media is None else media
        config = kind.their_config(**{**kind.sizes, **sizes})
        theirs = kind.theirs._from_config(copy.deepcopy(config), dtype=dtype).eval()
        enliven(theirs, noise)
        if name == "vision_2_5":
            # transformers calls functions of this kind of name with the segments of all pictures.
            AttentionInterface.register("masked_flash", attend_masked)
            theirs.config._attn_implementation = "masked_flash"
        values = config.to_dict() | dict(fault or {})
        make = partial(kind.ours, tower_config(kind.our_config, {"tower": values}, "tower"))
        ours = unfilled(make, torch.device("cpu"), dtype)
        ours.load_state_dict(theirs.state_dict())
        if kind.pictures:
            values = theirs.patch_embed.proj.weight[0].numel()
            shapes = [(t * height * width, values) for t, height, width in media]
        else:
            shapes = [(theirs.num_mel_bins, frames) for frames in media]
        return cls(kind, theirs, ours, media, [torch.randn(shape, generator=noise) for shape in shapes])

    @torch.inference_mode()
    def expected(self) -> dict[str, Tensor]:
        if not self.kind.pictures:
            out = self.theirs(torch.cat(list(self.features), 1), torch.tensor(self.media))
            return {"embeddings": out.last_hidden_state}
        out = self.theirs(torch.cat(list(self.features)), grid_thw=torch.tensor(self.media))
        levels = getattr(out, "deepstack_features", None)
        return {"embeddings": out.pooler_output} | ({"deepstack": torch.stack(list(levels))} if levels else {})

    def made(self) -> dict[str, Tensor]:
        padded: tuple[int, ...] = ()
        if self.kind.pictures:
            items = [{"pixels": p, "grid": torch.tensor(g)} for p, g in zip(self.features, self.media, strict=True)]
            if self.kind.theirs is hf_2_5.Qwen2_5OmniVisionEncoder:
                # Without lengths of segments it masks, too.
                padded = (self.ours.padded_length(items),)
        else:
            chunk = torch.tensor(min(max(self.media), 2 * self.theirs.n_window))
            items = [{"features": features, "chunk": chunk} for features in self.features]
            if self.kind.theirs is hf_2_5.Qwen2_5OmniAudioEncoder:
                items = [{"features": features} for features in self.features]
        outputs = encode(self.ours, items, lengths=padded)
        joined = {"embeddings": 0, "deepstack": 1}
        return {name: torch.cat([one[name] for one in outputs], joined[name]) for name in outputs[0]}

    def equal(self) -> bool:
        expected, made = self.expected(), self.made()
        assert expected.keys() == made.keys()
        for name, tensor in expected.items():
            assert tensor.isfinite().all()
            assert tensor.std() > 0.1
            assert made[name].dtype == tensor.dtype
            assert made[name].shape == tensor.shape
        return all(torch.equal(made[name], tensor) for name, tensor in expected.items())


GRIDS = ((1, 2, 2), (2, 8, 4), (1, 6, 10))
CASES: list[tuple[str, Mapping[str, object], Sequence[Any] | None]] = [
    *((name, {}, None) for name in KINDS),
    # Ends of chunks and of attention windows; short clips, whose chunks are padded no further than the longest.
    *(("audio_3", {}, media) for media in ((100,), (1, 250, 801), (301, 99), (53, 17), (8,))),
    ("audio_3", {"num_mel_bins": 21, "n_window": 49, "n_window_infer": 196}, None),
    ("audio_3", {"conv_chunksize": 3, "encoder_attention_heads": 1}, None),
    ("audio_3", {"activation_function": "relu", "n_window_infer": 100}, None),
    ("audio_3", {"activation_function": "quick_gelu", "encoder_layers": 1, "d_model": 6}, None),
    *(("audio_2_5", {}, media) for media in ((20,), (81, 45), (3, 4, 5, 21), (19, 41))),
    ("audio_2_5", {"num_mel_bins": 7, "n_window": 9, "encoder_attention_heads": 1}, None),
    ("audio_2_5", {"activation_function": "gelu_new", "encoder_layers": 3}, None),
    ("vision_3", {}, GRIDS),
    ("vision_3", {"deepstack_visual_indexes": []}, None),
    ("vision_3", {"deepstack_visual_indexes": [3, 1, 0]}, None),
    ("vision_3", {"spatial_merge_size": 1, "num_position_embeddings": 26}, ((1, 3, 5), (2, 1, 7))),
    ("vision_3", {"spatial_merge_size": 3, "temporal_patch_size": 1, "patch_size": 3}, ((1, 3, 9), (2, 6, 3))),
    ("vision_3", {"hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 77.5}}, None),
    ("vision_3", {"num_heads": 1, "depth": 1, "deepstack_visual_indexes": [0]}, None),
    ("vision_2_5", {}, GRIDS),
    ("vision_2_5", {"fullatt_block_indexes": []}, None),
    ("vision_2_5", {"fullatt_block_indexes": [0, 1, 2, 3], "num_heads": 1}, None),
    ("vision_2_5", {"window_size": 24, "hidden_act": "gelu"}, None),
    ("vision_2_5", {"spatial_merge_size": 1, "window_size": 12, "patch_size": 3}, ((1, 5, 7), (2, 3, 3))),
    ("vision_2_5", {"temporal_patch_size": 1, "rope_parameters": {"rope_type": "axial", "rope_theta": 77.5}}, None),
]


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "sizes", "media"), CASES, ids=str)
def test_outputs_are_those_of_transformers(
    name: str, sizes: Mapping[str, object], media: Sequence[Any] | None, dtype: torch.dtype
) -> None:
    assert Pair.of(name, dtype, media, sizes).equal()


def overflow(pair: Pair) -> Pair:
    """The first layer's sums exceed float16."""
    with torch.no_grad():
        for tower in (pair.theirs, pair.ours):
            tower.layers[0].fc2.bias.fill_(60_000.0)
            tower.layers[0].self_attn.out_proj.bias.fill_(60_000.0)
    return pair


def test_sums_beyond_float16_are_clamped_as_in_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"encoder_layers": 1}
    assert overflow(Pair.of("audio_3", FP16, None, sizes)).equal()
    monkeypatch.setattr(clip_layer, "_CLAMP_MARGIN", 0)
    assert not overflow(Pair.of("audio_3", FP16, None, sizes)).equal()


Plant = Callable[[pytest.MonkeyPatch, Any], object]
"""Plants a fault in our tower, the last argument, or in what it calls."""


def patched(place: Any, name: str, change: Callable[..., Any]) -> Plant:
    """change: takes the original, and then its arguments."""

    def plant(patch: pytest.MonkeyPatch, _: Any) -> None:
        original = getattr(place, name)
        patch.setattr(place, name, lambda *args: change(original, *args))

    return plant


def set_on(path: str, value: object) -> Plant:
    """path: of an attribute of the tower."""
    owner, _, name = path.rpartition(".")
    return lambda patch, ours: patch.setattr(ours.get_submodule(owner), name, value)


def rescaled(original: Any, segments: Segments, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    attended: Tensor = original(segments, q, k, v, scale * 1.001)
    return attended


def shifted(original: Any, count: int, *others: Any) -> Any:
    return original(count + 1, *others)[1:]


def turned(original: Any, places: Tensor, *others: Any) -> Any:
    """Columns in place of rows."""
    return original(places.flip(1), *others)


def rounded(original: Any, rotation: PatchRotation, heads: Tensor) -> Tensor:
    """In the dtype of the heads, not in float32."""
    low, high = heads.chunk(2, -1)
    return heads * rotation.cos.to(heads.dtype) + torch.cat((-high, low), -1) * rotation.sin.to(heads.dtype)


def summed_low(original: Any, grid: LearnedGrid, taps: Tensor, weights: Tensor) -> Tensor:
    return (embedding(taps, grid.weight) * weights[:, :, None].to(grid.weight.dtype)).sum(1)


def alike(original: Any, grid: LearnedGrid, taps: Tensor, weights: Tensor) -> Any:
    return original(grid, taps, torch.full_like(weights, 0.25))


SCALE = patched(Segments, "attend", rescaled)
TURNED = patched(PatchRotation, "of", turned)
FAULTS: list[tuple[str, str, torch.dtype, Plant | Mapping[str, object]]] = [
    *((name, "scale of scores", FP32, SCALE) for name in KINDS),
    ("audio_3", "eps of a layer", FP32, set_on("layers.0.final_layer_norm.eps", 1e-6)),
    ("audio_3", "eps of the last norm", FP32, set_on("ln_post.eps", 1e-6)),
    ("audio_3", "positions", FP32, patched(positions, "sinusoids", shifted)),
    ("audio_3", "no positions", BF16, patched(positions, "sinusoids", lambda original, *a: 0 * original(*a))),
    ("audio_3", "activation", FP32, {"activation_function": "gelu_new"}),
    ("audio_3", "activation of convolutions", FP32, patched(conv2d_clips, "gelu", lambda _, x: x.relu())),
    ("audio_3", "range of attention", FP32, {"n_window_infer": 200}),
    ("audio_3", "heads", FP32, {"encoder_attention_heads": 2}),
    ("audio_2_5", "eps of a layer", FP32, set_on("layers.1.self_attn_layer_norm.eps", 1e-6)),
    ("audio_2_5", "positions", FP32, patched(positions, "sinusoids", shifted)),
    ("audio_2_5", "activation", FP32, {"activation_function": "gelu_pytorch_tanh"}),
    ("audio_2_5", "frames behind", FP32, patched(conv1d_clips, "behind", lambda original, *a: original(*a) & False)),
    ("audio_2_5", "heads", BF16, {"encoder_attention_heads": 2}),
    ("vision_3", "eps of a layer", FP32, set_on("blocks.1.norm2.eps", 1e-5)),
    ("vision_3", "eps of the merger", FP32, set_on("merger.ln_q.eps", 1e-5)),
    ("vision_3", "eps of a level", FP32, set_on("merger_list.1.ln_q.eps", 1e-5)),
    ("vision_3", "rows and columns", FP32, TURNED),
    ("vision_3", "wavelengths", FP32, {"rope_parameters": {"rope_theta": 9_999.0}}),
    ("vision_3", "rotation in bfloat16", BF16, patched(PatchRotation, "rotate", rounded)),
    ("vision_3", "interpolation in bfloat16", BF16, patched(LearnedGrid, "forward", summed_low)),
    ("vision_3", "weights of neighbours", BF16, patched(LearnedGrid, "forward", alike)),
    ("vision_3", "activation", FP32, {"hidden_act": "gelu"}),
    ("vision_3", "levels", FP32, set_on("_levels", (2, 0))),
    ("vision_3", "level", FP32, {"deepstack_visual_indexes": [0, 3]}),
    ("vision_3", "heads", FP32, {"num_heads": 2}),
    ("vision_2_5", "eps of a layer", FP32, set_on("blocks.2.norm1.eps", 1e-5)),
    ("vision_2_5", "eps of the merger", FP32, set_on("merger.ln_q.eps", 1e-5)),
    ("vision_2_5", "rows and columns", FP32, TURNED),
    ("vision_2_5", "wavelengths", FP32, {"rope_parameters": {"rope_theta": 9_999.0}}),
    ("vision_2_5", "activation", FP32, {"hidden_act": "gelu"}),
    ("vision_2_5", "windows", FP32, {"window_size": 24}),
    ("vision_2_5", "layers without windows", FP32, {"fullatt_block_indexes": [1, 2]}),
    ("vision_2_5", "order", FP32, patched(Tensor, "index_copy_", lambda _, out, dim, index, source: out.copy_(source))),
    ("vision_2_5", "rotation in bfloat16", BF16, patched(PatchRotation, "rotate", rounded)),
]


@pytest.mark.parametrize(
    ("name", "dtype", "fault"), [pytest.param(name, *rest, id=f"{name} {what}") for name, what, *rest in FAULTS]
)
def test_planted_fault_in_a_tower(
    name: str, dtype: torch.dtype, fault: Plant | Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(fault, Mapping):
        assert not Pair.of(name, dtype, None, {}, fault).equal()
        return
    pair = Pair.of(name, dtype, None, {})
    assert pair.equal()
    fault(monkeypatch, pair.ours)
    assert not pair.equal()
