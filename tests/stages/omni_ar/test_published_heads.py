"""EAGLE-3 heads as their trainers publish them: names, tables, dtypes and fields that they write differently."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.errors import CheckpointError
from omni_ar.drafters import DraftSetup, FeatureShape
from omni_ar.drafters.eagle3_config import read_config
from tests.stages.omni_ar.eagle3_rows import drafter_of, rows_of
from tests.support.fake_hub import REPOSITORY, fetched, publish
from tests.support.tiny_heads import TinyHead, eagle3_head, setup_of, write_stage


def test_names_and_tables_of_other_trainers(stage: Path, setup: DraftSetup, tmp_path: Path):
    """Names with a prefix, the layer's number in them, and the layer's fields in a table of their own."""
    head = eagle3_head(stage)
    plain = drafter_of(head.write(tmp_path / "plain"), setup)
    weights = {name.replace("midlayer.", "layers.0."): each for name, each in head.weights.items()}
    top = {
        "speculators_model_type": "eagle3",
        "model_type": "",
        "draft_vocab_size": head.config.pop("draft_vocab_size"),
    }
    top["transformer_layer_config"] = dict(head.config)
    folders = [
        TinyHead(top, weights).write(tmp_path / "numbered"),
        TinyHead(top, weights, prefix="model.").write(tmp_path / "prefixed"),
    ]
    for folder in folders:
        other = drafter_of(folder, setup)
        assert other.weight_bytes == plain.weight_bytes
        for name, parameter in other._model.state_dict().items():
            torch.testing.assert_close(parameter, plain._model.state_dict()[name], atol=0, rtol=0)
        assert torch.equal(other._model.targets_V, plain._model.targets_V)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stage(tmp_path_factory.mktemp("stage"), hidden_size=48)


@pytest.fixture(scope="module")
def setup(stage: Path) -> DraftSetup:
    return setup_of(stage)


DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("published", DTYPES)
def test_weights_are_converted_to_the_dtype_of_the_stage(
    published: torch.dtype, dtype: torch.dtype, stage: Path, tmp_path: Path
):
    head = eagle3_head(stage)
    head.weights = {name: _converted(each, published) for name, each in head.weights.items()}
    drafter = drafter_of(head.write(tmp_path / "head"), setup_of(stage, dtype=dtype))
    parameters = dict(drafter._model.named_parameters())
    assert all(each.dtype == dtype for each in parameters.values())
    for name in ("fc.weight", "lm_head.weight", "midlayer.hidden_norm.weight", "midlayer.self_attn.o_proj.weight"):
        assert torch.equal(parameters[name], head.weights[name].to(dtype)), name


def _converted(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype) if weight.is_floating_point() else weight


def _set(**fields: Any) -> Any:
    return lambda head: head.config.update(fields)


def _convert(dtype: torch.dtype, *names: str) -> Any:
    return lambda head: head.weights.update({name: head.weights[name].to(dtype) for name in names})


def _rename(head: TinyHead) -> None:
    """Some trainers save the whole module, others its backbone beside its tables."""
    alone = ("lm_head.weight", "d2t", "t2d")
    head.weights = {name if name in alone else f"model.{name}": each for name, each in head.weights.items()}


def _drop_mask(head: TinyHead) -> None:
    del head.weights["t2d"]


def _rope_in_a_table(head: TinyHead) -> None:
    head.config["rope_parameters"] = {"rope_theta": head.config.pop("rope_theta"), "rope_type": "default"}


NO_DIFFERENCE: dict[str, Any] = {
    "false as a flag": _set(norm_before_residual=False, fc_norm=False, parallel_drafting=None),
    "offsets of 32 bits": _convert(torch.int32, "d2t"),
    "offsets of 16 bits": _convert(torch.int16, "d2t"),
    "a mask of bytes": _convert(torch.uint8, "t2d"),
    "no mask": _drop_mask,
    "prefixes of some names": _rename,
    "the width given": _set(target_hidden_size=48),
    "no width": _set(target_hidden_size=None, eagle_aux_hidden_state_layer_ids=None),
    "the hidden states given": _set(eagle_aux_hidden_state_layer_ids=[2, 4, 5]),
    "those of their table": _set(
        eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    ),
    "both lists": _set(
        eagle_aux_hidden_state_layer_ids=[2, 4, 5], eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    ),
    "a window of the stage's, off": _set(sliding_window=7, use_sliding_window=False, max_window_layers=48),
    "a window of the stage's": _set(sliding_window=7),
    "rotary base in a table": _rope_in_a_table,
}


@pytest.mark.parametrize("way", NO_DIFFERENCE)
def test_ways_to_write_the_same_head(way: str, stage: Path, setup: DraftSetup, tmp_path: Path):
    head = eagle3_head(stage)
    plain = drafter_of(eagle3_head(stage).write(tmp_path / "plain"), setup)
    NO_DIFFERENCE[way](head)
    other = drafter_of(head.write(tmp_path / "head"), setup)
    assert other.feature_shape == plain.feature_shape == FeatureShape(layers=(2, 4, 5), width=48)
    expected = plain._model.state_dict()
    for name, weight in other._model.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    for field in ("_decoder", "max_positions"):
        assert getattr(other._model, field) == getattr(plain._model, field)
    assert torch.equal(other._model.targets_V, plain._model.targets_V)  # type: ignore[arg-type]
    assert not other._model.midlayer._norm_before_residual  # type: ignore[union-attr]


def _both_names(head: TinyHead) -> None:
    head.weights["layers.0.hidden_norm.weight"] = head.weights["midlayer.hidden_norm.weight"].clone()


FIELD = r"text\.drafter_args\.model: "
FLAG = r"neither true nor false; write true or false, without quotes"
REFUSED: dict[str, tuple[Any, str]] = {
    "a flag in quotes": (
        _set(norm_before_residual="false"),
        rf"config\.json: norm_before_residual: is 'false', {FLAG}",
    ),
    "a number as flag": (_set(norm_before_residual=1), rf"config\.json: norm_before_residual: is 1, {FLAG}"),
    "another flag": (_set(fc_norm="false"), rf"config\.json: fc_norm: is 'false', {FLAG}"),
    "a flag of the table": (
        _set(eagle_config={"use_aux_hidden_state": "false"}),
        rf"config\.json: eagle_config\.use_aux_hidden_state: is 'false', {FLAG}",
    ),
    "tied in quotes": (
        _set(tie_word_embeddings="false"),
        r"config\.json: tie_word_embeddings: .* expected bool, got str",
    ),
    "bias in quotes": (_set(attention_bias="false"), r"config\.json: attention_bias: .* expected bool, got str"),
    "a mask as offsets": (_convert(torch.bool, "d2t"), r"d2t: is \[61\] of torch\.bool, not 61 whole numbers"),
    "offsets as weights": (_convert(torch.bfloat16, "d2t"), r"d2t: is \[61\] of torch\.bfloat16, not 61 whole numbers"),
    "weights of 8 bits": (
        _convert(torch.float8_e4m3fn, "fc.weight"),
        r"fc\.weight: is float8_e4m3fn: quantized weights are not supported; use a head with weights in bfloat16",
    ),
    "whole numbers as weights": (
        _convert(torch.int8, "midlayer.mlp.up_proj.weight"),
        r"midlayer\.mlp\.up_proj\.weight: is int8: quantized weights are not supported",
    ),
    "quantized by config": (
        _set(quantization_config={"bits": 4}),
        r"config\.json: quantization_config: is \{'bits': 4\}, which is not supported",
    ),
    "a part of rotary dimensions": (
        _set(partial_rotary_factor=0.5),
        r"config\.json: partial_rotary_factor: is 0\.5, not 1\.0, which alone is supported",
    ),
    "sizes in quotes": (_set(draft_vocab_size="61"), r"config\.json: draft_vocab_size: is '61', not a whole number"),
    "a fraction as width": (_set(target_hidden_size=48.0), r"config\.json: target_hidden_size: is 48\.0, not a whole"),
    "no size of its vocabulary": (_set(draft_vocab_size=None), r"d2t: is \[61\] of torch\.int64, not 97 whole numbers"),
    "hidden states in quotes": (
        _set(eagle_aux_hidden_state_layer_ids="2,4,5"),
        r"config\.json: eagle_aux_hidden_state_layer_ids: is '2,4,5', not a list",
    ),
    "hidden states of fewer layers": (
        _set(eagle_aux_hidden_state_layer_ids=[2, 4]),
        r"fc\.weight: wrong tensor shape: expected \(48, 96\), found \(48, 144\)",
    ),
    "layers of the stage": (
        _set(num_hidden_layers=36),
        r"config\.json: num_hidden_layers: is 36, not 1, which alone is",
    ),
    "layers of another kind": (_set(layer_types=["chunked_attention"]), r"config\.json: layer_types"),
    "a layer under two names": (_both_names, r"midlayer\.hidden_norm\.weight: has the same destination as layers\.0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name(what: str, stage: Path, setup: DraftSetup, tmp_path: Path):
    head, (change, said) = eagle3_head(stage), REFUSED[what]
    change(head)
    with pytest.raises(CheckpointError, match=FIELD + said):
        drafter_of(head.write(tmp_path / "head"), setup)


def test_weights_in_a_pickle(stage: Path, setup: DraftSetup, tmp_path: Path):
    """Two of them in one memory, two the same, and one as the transpose of what is stored, as some are saved; a file beside
    safetensors is not read."""
    head = eagle3_head(stage)
    norm, same = (f"midlayer.{name}.weight" for name in ("hidden_norm", "input_layernorm"))
    head.weights[same] = head.weights[norm].clone()
    folder = head.write(tmp_path / "head")
    plain = drafter_of(folder, setup)._model.state_dict()
    (folder / "pytorch_model.bin").write_bytes(b"damaged")
    drafter_of(folder, setup)
    (folder / "model.safetensors").unlink()
    both = torch.cat([head.weights[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    gate, up = both.chunk(2)
    saved = head.weights | {"midlayer.mlp.gate_proj.weight": gate, "midlayer.mlp.up_proj.weight": up}
    saved[same] = saved[norm]
    saved["fc.weight"] = head.weights["fc.weight"].T.contiguous().T
    torch.save(saved, folder / "pytorch_model.bin")
    drafter = drafter_of(folder, setup)
    for name, parameter in drafter._model.state_dict().items():
        assert torch.equal(parameter, plain[name])
    with torch.inference_mode():
        rows_of(stage, head, setup, drafter).run(2)


class Executed:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was executed",)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (
            {"fc.weight": Executed()},
            r"model: pytorch_model\.bin: is damaged, or holds more than tensors \(UnpicklingError\)",
        ),
        ([torch.zeros(2)], r"model: pytorch_model\.bin: holds no table of weights; use the file of a published head"),
        ({3: torch.zeros(2)}, r"model: 3: is not a weight of a supported EAGLE-3 head"),
        ({"fc.weight": 3}, r"model: pytorch_model\.bin: holds no table of weights; use the file of a published head"),
        (None, r"model: checkpoint: .* holds no weights: neither"),
    ],
)
def test_pickles_that_are_refused(saved: Any, said: str, stage: Path, setup: DraftSetup, tmp_path: Path):
    folder = eagle3_head(stage).write(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    if saved is not None:
        torch.save(saved, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=said):
        drafter_of(folder, setup)


def test_random_weights_need_no_pickle(stage: Path, tmp_path: Path):
    folder = eagle3_head(stage).write(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"damaged")
    drafter = drafter_of(folder, setup_of(stage, load_format="dummy"))
    assert drafter.weight_bytes > 0


ON_HUB: list[tuple[tuple[str, ...], str, set[str]]] = [
    (("model.safetensors", "pytorch_model.bin"), "auto", {"model.safetensors"}),
    (("pytorch_model.bin",), "auto", {"pytorch_model.bin"}),
    (("model.safetensors", "pytorch_model.bin"), "dummy", set()),
]
"""Weights that are published, the load format, and those that are fetched."""


@pytest.mark.parametrize(("weights", "load_format", "needed"), ON_HUB)
def test_only_needed_weights_of_a_head_are_fetched(
    weights: tuple[str, ...],
    load_format: str,
    needed: set[str],
    stage: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    head = eagle3_head(stage)
    folder = head.write(tmp_path / "head")
    torch.save(head.weights, folder / "pytorch_model.bin")
    for name in {"model.safetensors", "pytorch_model.bin"}.difference(weights):
        (folder / name).unlink()
    publish(folder, tmp_path / "cache", monkeypatch)
    assert drafter_of(Path(REPOSITORY), setup_of(stage, load_format=load_format)).weight_bytes > 0
    assert fetched(tmp_path / "cache") == {"config.json"} | needed


LAYERS: list[tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = [
    ({}, {}, (2, 4, 5)),
    ({"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}, {}, (0, 3, 7)),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}, {}, (2, 4, 7)),
    ({"eagle_config": {"use_aux_hidden_state": True}}, {}, (2, 4, 5)),
    ({"eagle_aux_hidden_state_layer_ids": []}, {}, (2, 4, 5)),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, {}, (2, 4, 5)),
    ({"eagle_aux_hidden_state_layer_ids": [0, 3, 9]}, {"layers": [1, 2, 3]}, (1, 2, 3)),
]


@pytest.mark.parametrize(("config", "args", "layers"), LAYERS)
def test_hidden_states_that_a_head_reads(
    config: dict[str, Any],
    args: dict[str, Any],
    layers: tuple[int, ...],
    stage: Path,
    setup: DraftSetup,
    tmp_path: Path,
):
    """Lists of trainers number the inputs of layers, those in `eagle_config` the outputs from 0."""
    drafter = drafter_of(eagle3_head(stage, **config).write(tmp_path / "head"), setup, **args)
    assert drafter.feature_shape == FeatureShape(layers=layers, width=drafter._model.fc.out_features)  # type: ignore[union-attr, arg-type]


PUBLISHED = {
    "bos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "draft_vocab_size": 32000,
}


def test_published_configs_are_read():
    """Of Qwen3-30B-A3B and of the thinker of Qwen3-Omni, which leaves the width of a head and the rotary base open."""
    more = {
        "head_dim": 128,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    text = read_config(PUBLISHED | more | {"vocab_size": 151936, "attention_bias": False, "max_window_layers": 48})
    thinker = read_config(PUBLISHED | {"vocab_size": 152064})
    assert (text.decoder.head_dim, text.decoder.rope_theta, text.vocab_size) == (128, 1e6, 151936)
    assert (thinker.decoder.head_dim, thinker.decoder.rope_theta, thinker.vocab_size) == (64, 1e4, 152064)
    for config in (text, thinker):
        assert (config.draft_size, config.target_width, config.norm_before_residual) == (32000, 2048, False)
        assert (config.decoder.num_heads, config.decoder.num_kv_heads, config.decoder.qk_norm) == (32, 4, False)
        assert (config.decoder.attention_bias, config.decoder.attention_windows) == (False, ())
