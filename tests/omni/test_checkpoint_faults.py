"""Checkpoints spoiled in one place: each is refused at start by an error that names the place, or served as a whole one is.

`python -m tests.omni.checkpoint_fuzz` tries every place, and so do the slow tests here. The default run tries some, and those that
once failed.
"""

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from omni import CheckpointError, ConfigError, Omni
from tests.omni.checkpoint_fuzz import FAMILIES, VALUES, Fault, faults, spoil, verdict
from tests.support.tiny_omni import tiny_plugins

pytestmark = pytest.mark.thorough

_SOME = 12


def outcome(folder: Path, to: Path, family: str, fault: Fault) -> str:
    """Adds what was spoiled to whatever is raised."""
    try:
        return verdict(spoil(folder, to, fault), family)
    except Exception as error:
        error.add_note(str(fault))
        raise


@pytest.mark.parametrize("family", FAMILIES)
def test_some_faults_of_every_family(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family]()
    chosen = random.Random(f"{family} 1").sample(list(faults(folder)), _SOME)
    for fault in chosen:
        result = outcome(folder, tmp_path / "model", family, fault)
        assert result == "served" or result.startswith("refused: ")


@pytest.mark.slow
@pytest.mark.parametrize("share", range(16))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_fault_of_every_family(family: str, share: int, tmp_path: Path) -> None:
    folder = FAMILIES[family]()
    for fault in list(faults(folder))[share::16]:
        result = outcome(folder, tmp_path / "model", family, fault)
        assert result == "served" or result.startswith("refused: ")


THINKER, TALKER = "thinker_config.text_config", "talker_config.text_config"
DIT, BIGVGAN = "token2wav_config.dit_config", "token2wav_config.bigvgan_config"
NAMED: list[tuple[str, str, Any, str]] = [
    ("qwen2_5_omni", f"{DIT}.enc_dilations.2", 0, "enc_dilations[2]: is 0, below 1"),
    ("qwen2_5_omni", f"{DIT}.enc_dilations", [1, 2, 3], "enc_dilations: has 3 entries beside 4 of enc_channels"),
    ("qwen2_5_omni", f"{BIGVGAN}.resblock_dilation_sizes.0.2", 0, "resblock_dilation_sizes[0][2]: is 0, below 1"),
    ("qwen2_5_omni", f"{BIGVGAN}.upsample_rates.0", 0, "upsample_rates[0]: is 0, below 1"),
    ("qwen2_5_omni", f"{BIGVGAN}.upsample_rates.0", 2**40, "upsample_rates[0]: is 1099511627776, above 256"),
    ("qwen3_omni", "code2wav_config.upsample_rates", [200, 200, 200], "gives 32,000,000 samples for a frame"),
    ("qwen3_omni", "thinker_config.audio_config.conv_chunksize", 0, "conv_chunksize: is 0, below 1"),
    ("qwen3_omni", "thinker_config.audio_config.conv_chunksize", -1, "conv_chunksize: is -1, below 1"),
    ("qwen2_5_omni", f"{DIT}.enc_channels.2", 1, "enc_channels[2]: is 1, no multiple of enc_res2net_scale"),
    ("csm", "codec_config.upsampling_ratios.1", 0, "upsampling_ratios[1]: is 0, below 1"),
    ("csm", "codec_config.dilation_growth_rate", 0, "dilation_growth_rate: is 0, below 1"),
    (
        "qwen3_omni",
        f"{THINKER}.rope_scaling.mrope_section",
        [4, 4, 4],
        "mrope_section: is [4, 4, 4], three numbers that",
    ),
    ("qwen3_omni", f"{THINKER}.rope_scaling.mrope_section", [16, -4, -4], "mrope_section[1]: is -4, below 0"),
    ("qwen3_omni", f"{TALKER}.rope_scaling.mrope_section", "x", "mrope_section"),
    ("qwen3_omni", f"{THINKER}.hidden_size", 1, "thinker_config."),
    ("text", "hidden_size", -64, "hidden_size: is -64, below 1"),
    ("csm", "codec_config.num_filters", -64, "num_filters: is -64, below 1"),
    ("text", "hidden_act", "swoosh", "hidden_act: 'swoosh' is not supported; use a model with silu"),
    (
        "qwen3_omni",
        "thinker_config.vision_config.hidden_act",
        "swoosh",
        "hidden_act: is 'swoosh', which is not supported",
    ),
    ("text", "rope_parameters.rope_theta", "10000", "rope_theta: is '10000', not a number"),
    ("text", "rope_parameters.rope_theta", 0, "rope_theta: is 0, not above 0"),
    ("csm", "rope_parameters.factor", None, "rope_parameters.factor: is None, not a number"),
    (
        "qwen3_omni",
        "thinker_config.audio_token_id",
        "a",
        "audio_token_id: TypeError: Field 'audio_token_id' expected int",
    ),
    ("csm", "audio_token_id", 0, "gives 0 placeholders for 1 parts of kind audio"),
    ("qwen3_omni", "im_start_token_id", 1, "config.json: im_start_token_id: is not the token that opens turns"),
    ("qwen3_omni", "assistant_token_id", 1, "config.json: assistant_token_id: is not the token that opens turns"),
    ("text", "max_position_embeddings", 1, "max_position_embeddings: is 1, below 16"),
    ("text", "hidden_size", 10**400, "hidden_size: is a number of 1,329 bits, too large"),
]


@pytest.mark.parametrize(
    ("family", "path", "value", "words"), NAMED, ids=[f"{n[0]}-{n[1]}={str(n[2])[:20]}" for n in NAMED]
)
def test_what_was_found_is_named(
    family: str, path: str, value: Any, words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(VALUES, "this", value)
    place = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    folder = spoil(FAMILIES[family](), tmp_path / "model", Fault("config.json", place, "this"))
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        Omni(folder, device="cpu", plugins=tiny_plugins())
    assert words in str(caught.value)
    assert "config.json" in str(caught.value)


def test_processors_of_another_model_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(VALUES, "this", 1)
    fault = Fault("preprocessor_config.json", ("merge_size",), "this")
    folder = spoil(FAMILIES["qwen3_omni"](), tmp_path / "model", fault)
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json: merge_size: is 1, beside 2 of config.json"):
        Omni(folder, device="cpu", plugins=tiny_plugins())


def test_a_decoder_without_heads_has_those_of_its_kind(tmp_path: Path) -> None:
    """transformers' own default stands for what is missing, and then the weights do not fit."""
    folder = spoil(FAMILIES["text"](), tmp_path / "model", Fault("config.json", ("num_attention_heads",), "deleted"))
    with pytest.raises(CheckpointError, match=r"num_attention_heads|wrong tensor shape"):
        Omni(folder, device="cpu", plugins=tiny_plugins())


FILES: list[tuple[str, str, str, Any, str]] = [
    (
        "csm",
        "tokenizer.json",
        "added_tokens.0.id",
        2**40,
        "tokenizer.json: added_tokens[0].id: Expected `int` <= 4194303",
    ),
    ("csm", "tokenizer.json", "added_tokens.0.content", 3, "tokenizer.json: added_tokens[0].content: Expected `str`"),
    (
        "qwen3_omni",
        "preprocessor_config.json",
        "image_std.1",
        0,
        "preprocessor_config.json: image_std[1]: Expected `float` > 0.0",
    ),
    (
        "qwen3_omni",
        "preprocessor_config.json",
        "hop_length",
        "x",
        "preprocessor_config.json: hop_length: Expected `int`",
    ),
    (
        "qwen3_omni",
        "preprocessor_config.json",
        "feature_size",
        80,
        "preprocessor_config.json: gives features of 80 values",
    ),
    ("qwen3_omni", "preprocessor_config.json", "patch_size", 14, "preprocessor_config.json"),
    (
        "qwen3_omni",
        "preprocessor_config.json",
        "do_resize",
        None,
        "preprocessor_config.json: do_resize: is None, not True",
    ),
    ("qwen2_5_omni", "tokenizer_config.json", "audio_token", None, "tokenizer_config.json: audio_token"),
    ("qwen2_5_omni", "tokenizer_config.json", "image_token", "<|IMAGES|>", "tokenizer_config.json: image_token"),
]


@pytest.mark.parametrize(("family", "file", "path", "value", "words"), FILES, ids=[f"{n[1]}-{n[2]}" for n in FILES])
def test_other_files(
    family: str, file: str, path: str, value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VALUES, "this", value)
    place = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    folder = spoil(FAMILIES[family](), tmp_path / "model", Fault(file, place, "this"))
    with pytest.raises(CheckpointError) as caught:
        Omni(folder, device="cpu", plugins=tiny_plugins())
    assert words in str(caught.value)


TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}{{ part.text }}"
    "{% if part.type == 'audio' %}X{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        ("", "gives 0 placeholders for 1 parts of kind audio"),
        ("<|AUDIO|><|AUDIO|>", "gives 2 placeholders for 1 parts of kind audio"),
    ],
)
def test_a_template_with_other_than_one_placeholder(audio: str, words: str, tmp_path: Path) -> None:
    folder = spoil(FAMILIES["csm"](), tmp_path / "model", Fault("generation_config.json", ("use_cache",), "true"))
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("X", audio))
    with pytest.raises(CheckpointError, match=rf"^chat_template\.jinja: {words}"):
        Omni(folder, device="cpu", plugins=tiny_plugins())


def test_a_template_that_leaves_out_what_is_said(tmp_path: Path) -> None:
    folder = spoil(FAMILIES["text"](), tmp_path / "model", Fault("generation_config.json", ("do_sample",), "true"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja: leaves out the text of a message"):
        Omni(folder, device="cpu", plugins=tiny_plugins())


def test_a_template_longer_than_any_prompt(tmp_path: Path) -> None:
    folder = spoil(FAMILIES["text"](), tmp_path / "model", Fault("generation_config.json", ("do_sample",), "true"))
    filler = " filler" * 200
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}" + filler)
    words = (
        r"^chat_template: renders a chat of one word as [\d,]+ tokens, and text takes 64 tokens.*text\.max_model_len$"
    )
    with pytest.raises(CheckpointError, match=words):
        Omni(folder, device="cpu", plugins=tiny_plugins(), overrides={"text.max_model_len": 64})


def test_a_model_that_is_merely_unsupported_is_not_called_damaged(tmp_path: Path) -> None:
    folder = FAMILIES["csm"]()
    config = json.loads((folder / "config.json").read_text())
    for field, value in (("mlp_bias", True), ("codec_config.use_causal_conv", False)):
        *parents, name = field.split(".")
        spoiled = json.loads(json.dumps(config))
        inner = spoiled[parents[0]] if parents else spoiled
        inner[name] = value
        (tmp_path / "config.json").write_text(json.dumps(spoiled))
        with pytest.raises(CheckpointError, match=rf"{name}: is .*, which alone is supported; .*use another model$"):
            Omni(tmp_path, device="cpu", plugins=tiny_plugins())


def test_weights_in_another_format_are_not_called_missing(tmp_path: Path) -> None:
    folder = spoil(FAMILIES["text"](), tmp_path / "model", Fault("generation_config.json", ("do_sample",), "true"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds weights as pytorch_model\.bin, a format that is not supported"):
        Omni(folder, device="cpu", plugins=tiny_plugins())


@pytest.mark.parametrize(
    ("family", "stage"), [("text", "text"), ("qwen3_omni", "thinker"), ("qwen3_omni", "talker"), ("csm", "backbone")]
)
def test_too_few_blocks_for_any_request_are_refused(family: str, stage: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{stage}\.num_blocks: 2 hold 32 tokens, and a request .* use at least \d+, or"
    ):
        Omni(FAMILIES[family](), device="cpu", plugins=tiny_plugins(), overrides={f"{stage}.num_blocks": 2})


def test_two_blocks_do_for_requests_that_are_short_by_default() -> None:
    few = {"text.num_blocks": 2, "text.sampling.max_tokens": 3}
    with Omni(FAMILIES["text"](), device="cpu", plugins=tiny_plugins(), overrides=few) as omni:
        assert next(iter(omni.generate("hello"))).error is None


WIDE = [
    ("qwen2_5_omni", "thinker_config.vision_config.hidden_size"),
    ("qwen3_omni", f"{THINKER}.hidden_size"),
    ("text", "intermediate_size"),
]


@pytest.mark.parametrize(("family", "path"), WIDE, ids=[family for family, _ in WIDE])
def test_a_width_that_the_weights_do_not_have_takes_no_memory(
    family: str, path: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(VALUES, "this", 65536)
    folder = spoil(FAMILIES[family](), tmp_path / "model", Fault("config.json", tuple(path.split(".")), "this"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * 2**30, hard))
    try:
        with pytest.raises((CheckpointError, ConfigError)):
            Omni(folder, device="cpu", plugins=tiny_plugins())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
