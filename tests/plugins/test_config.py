"""Checkpoints that a family cannot serve are refused by the name of a field of config.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from omni.checkpoint import Checkpoint
from omni.errors import CheckpointError
from omni_csm.config import read_config as csm
from omni_qwen2_5_omni.config import read_config as qwen2_5_omni
from omni_qwen3_omni.config import read_config as qwen3_omni
from tests.support.csm_reference import tiny_csm
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_qwen2_5_omni import tiny_folder

FAMILIES: Mapping[str, tuple[Callable[[], Path], Callable[[Checkpoint], object]]] = {
    "csm": (tiny_csm, csm),
    "qwen2_5_omni": (tiny_folder, qwen2_5_omni),
    "qwen3_omni": (tiny_checkpoint, qwen3_omni),
}
WRONG: Mapping[str, Sequence[tuple[str, object, str]]] = {
    "csm": [
        ("mlp_bias", True, "mlp_bias: is True, not False"),
        ("depth_decoder_config.mlp_bias", True, "depth_decoder_config.mlp_bias: is True"),
        ("depth_decoder_config.num_codebooks", 3, "depth_decoder_config.num_codebooks: is 3, not 4"),
        ("depth_decoder_config.vocab_size", 99, "depth_decoder_config.vocab_size: is 99, not 67"),
        ("audio_token_id", 1000000, "audio_token_id: 1000000 is out of range, 0 to 259"),
        ("codebook_eos_token_id", 67, "codebook_eos_token_id: 67 is out of range, 0 to 66"),
        ("codebook_eos_token_id", [0, 1], "codebook_eos_token_id: [0, 1] is out"),
        ("depth_decoder_config.backbone_hidden_size", 32, "depth_decoder_config.backbone_hidden_size: is 32, not 64"),
        ("codec_config.num_quantizers", 5, "codec_config.num_quantizers: is 5, not 4"),
        ("codec_config.use_causal_conv", False, "codec_config.use_causal_conv: is False, not True"),
        ("codec_config.trim_right_ratio", 0.5, "codec_config.trim_right_ratio: is 0.5, not 1.0"),
        ("codec_config.pad_mode", "reflect", "codec_config.pad_mode: is 'reflect', not 'constant'"),
        ("codec_config.sampling_rate", 16000, "codec_config.sampling_rate: is 16000, not 24000"),
        ("codec_config.hidden_act", "silu", "codec_config.hidden_act: is 'silu', not 'gelu'"),
        ("hidden_act", "gelu", "hidden_act: 'gelu' is not supported"),
        ("hidden_size", "wide", "hidden_size: TypeError: Field 'hidden_size' expected int, got st"),
    ],
    "qwen2_5_omni": [
        ("thinker_config.audio_token_index", 576, "thinker_config.audio_token_index: 576 is out of range, 0 to 575"),
        ("talker_config.embedding_size", 60, "talker_config.embedding_size: is 60, not 64"),
        ("talker_config.tts_codec_end_token_id", 45, "tts_codec_end_token_id: 45 is out of range, 0 to 44"),
        ("talker_config.tts_text_end_token_id", -1, "tts_text_end_token_id: -1 is out of range"),
        ("talker_config.use_sliding_window", True, "talker_config.use_sliding_window: is not supported"),
        ("thinker_config.text_config.hidden_act", "gelu", "hidden_act: 'gelu' is not supported"),
        ("thinker_config.text_config.num_hidden_layers", "three", "use a published"),
        (
            "token2wav_config.dit_config.block_size",
            9,
            "dit_config.block_size: is 9, no multiple of repeats, which is 2",
        ),
        ("token2wav_config.dit_config.block_size", 0, "dit_config.block_size: is 0, below 1"),
        ("token2wav_config.dit_config.block_size", -8, "dit_config.block_size: is -8, below 1"),
        ("token2wav_config.dit_config.repeats", 0, "dit_config.repeats: is 0, below 1"),
        ("token2wav_config.dit_config.look_ahead_layers", [3], "look_ahead_layers[0]: 3 is out of range, 0 to 2"),
        ("token2wav_config.dit_config.look_backward_layers", [0, -1], "look_backward_layers[1]: -1 is out of range"),
        ("token2wav_config.bigvgan_config.mel_dim", 9, "bigvgan_config.mel_dim: is 9, not 8"),
    ],
    "qwen3_omni": [
        ("tts_pad_token_id", 576, "tts_pad_token_id: 576 is out of range, 0 to 575"),
        ("thinker_config.audio_token_id", -1, "thinker_config.audio_token_id: -1 is out of range"),
        ("talker_config.accept_hidden_layer", 4, "talker_config.accept_hidden_layer: 4 is out of range, 0 to 3"),
        ("talker_config.speaker_id", {}, "talker_config.speaker_id: names no voice"),
        ("talker_config.speaker_id", None, "talker_config.speaker_id: names no voice"),
        ("talker_config.speaker_id", {"Ann": 9999}, "talker_config.speaker_id.Ann: 9999 is out of range, 0 to 1087"),
        ("talker_config.codec_eos_token_id", 1088, "talker_config.codec_eos_token_id: 1088 is out of range"),
        ("talker_config.codec_nothink_id", -2, "talker_config.codec_nothink_id: -2 is out of range"),
        ("code2wav_config.hidden_size", "wide", "hidden_size"),
        ("code2wav_config.upsample_rates", 8, "upsample_rates"),
        ("code2wav_config.upsample_rates", [8, 0], "code2wav_config.upsample_rates[1]: is 0, below 1"),
        ("code2wav_config.upsampling_ratios", [0], "code2wav_config.upsampling_ratios[0]: is 0, below 1"),
        ("code2wav_config.sliding_window", 0, "code2wav_config.sliding_window: is 0"),
        ("code2wav_config.num_quantizers", -1, "code2wav_config.num_quantizers: is -1"),
        ("code2wav_config.num_key_value_heads", 3, "num_attention_heads: is 2, no multiple of num_key_value_heads"),
        ("code2wav_config.num_key_value_heads", 0, "code2wav_config.num_key_value_heads: is 0"),
        ("code2wav_config.head_dim", 5, "head_dim"),
        ("code2wav_config.decoder_dim", 8, "code2wav_config.decoder_dim: is 8, below 16"),
        ("code2wav_config.hidden_act", "relu", "code2wav_config.hidden_act: is 'relu', not 'silu'"),
        ("code2wav_config.rope_parameters", "default", "rope_parameters"),
        (
            "code2wav_config.rope_parameters",
            {"rope_type": "linear", "factor": 2.0},
            "code2wav_config.rope_parameters.rope_type: is 'linear', not 'default'",
        ),
    ],
}
"""By family: a path in config.json, a value there, and the error."""


@pytest.mark.parametrize(
    ("family", "path", "value", "message"), [(family, *case) for family, cases in WRONG.items() for case in cases]
)
def test_wrong_values_are_named(tmp_path: Path, family: str, path: str, value: object, message: str) -> None:
    made, read_config = FAMILIES[family]
    config: Any = json.loads((made() / "config.json").read_text())
    *parents, name = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"^config\.json") as caught:
        read_config(Checkpoint(tmp_path))
    assert message in str(caught.value)
