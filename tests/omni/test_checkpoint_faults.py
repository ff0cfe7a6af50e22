"""Checkpoints spoiled in one place: each is refused at start by an error that names the place, or served as a whole one is.

The slow tests try every place. The default run tries some, and those that once failed.
"""

import json
import random
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omni import CheckpointError, ConfigError, Omni
from tests.omni.checkpoint_fuzz import FAMILIES, VALUES, Fault, faults, spoil, verdict
from tests.support.tiny_omni import Bystander, tiny_plugins

pytestmark = pytest.mark.thorough

_SOME = 12


@contextmanager
def memory_bounded(gibibytes: int) -> Iterator[None]:
    """Bounds the memory that this process may map in addition."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + gibibytes * 2**30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def try_all(family: str, to: Path, chosen: list[Fault]) -> None:
    """Adds the spoiled value to an error."""
    for fault in chosen:
        try:
            result = verdict(spoil(FAMILIES[family](), to, fault), family)
            assert result == "served" or result.startswith("refused: ")
        except Exception as error:
            error.add_note(str(fault))
            raise


@pytest.mark.parametrize("family", FAMILIES)
def test_some_faults_of_every_family(family: str, tmp_path: Path) -> None:
    every = list(faults(FAMILIES[family]()))
    try_all(family, tmp_path / "model", random.Random(f"{family} 1").sample(every, _SOME))


@pytest.mark.slow
@pytest.mark.parametrize("share", range(16))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_fault_of_every_family(family: str, share: int, tmp_path: Path) -> None:
    with memory_bounded(12):
        try_all(family, tmp_path / "model", list(faults(FAMILIES[family]()))[share::16])


CSM, TEXT, QWEN2_5, QWEN3 = "csm", "text", "qwen2_5_omni", "qwen3_omni"
AUDIO, VISION = "thinker_config.audio_config", "thinker_config.vision_config"
THINKER, TALKER = "thinker_config.text_config", "talker_config.text_config"
DIT, BIGVGAN = "token2wav_config.dit_config", "token2wav_config.bigvgan_config"
NAMED: list[tuple[str, str, Any, str]] = [
    (QWEN2_5, f"{DIT}.enc_dilations.2", 0, "enc_dilations[2]: is 0, below 1"),
    (QWEN2_5, f"{DIT}.enc_dilations", [1, 2, 3], "enc_dilations: has 3 entries beside 4 of enc_channels"),
    (QWEN2_5, f"{BIGVGAN}.resblock_dilation_sizes.0.2", 0, "resblock_dilation_sizes[0][2]: is 0, below 1"),
    (QWEN2_5, f"{BIGVGAN}.upsample_rates.0", 0, "upsample_rates[0]: is 0, below 1"),
    (QWEN2_5, f"{BIGVGAN}.upsample_rates.0", 2**40, "upsample_rates[0]: is 1099511627776, above 256"),
    (QWEN3, "code2wav_config.upsample_rates", [200, 200, 200], "gives 32,000,000 samples for a frame"),
    (QWEN3, f"{AUDIO}.conv_chunksize", 0, "conv_chunksize: is 0, below 1"),
    (QWEN3, f"{AUDIO}.conv_chunksize", -1, "conv_chunksize: is -1, below 1"),
    (QWEN2_5, f"{DIT}.enc_channels.2", 1, "enc_channels[2]: is 1, no multiple of enc_res2net_scale"),
    (CSM, "codec_config.upsampling_ratios.1", 0, "upsampling_ratios[1]: is 0, below 1"),
    (CSM, "codec_config.dilation_growth_rate", 0, "dilation_growth_rate: is 0, below 1"),
    (
        QWEN3,
        f"{THINKER}.rope_scaling.mrope_section",
        [4, 4, 4],
        "mrope_section: is [4, 4, 4], three numbers that",
    ),
    (QWEN3, f"{THINKER}.rope_scaling.mrope_section", [16, -4, -4], "mrope_section[1]: is -4, below 0"),
    (QWEN3, f"{TALKER}.rope_scaling.mrope_section", "x", "mrope_section"),
    (QWEN3, f"{THINKER}.hidden_size", 1, "thinker_config."),
    (TEXT, "hidden_size", -64, "hidden_size: is -64, below 1"),
    (CSM, "codec_config.num_filters", -64, "num_filters: is -64, below 1"),
    (TEXT, "hidden_act", "swoosh", "hidden_act: 'swoosh' is not supported; use a model with silu"),
    (
        QWEN3,
        f"{VISION}.hidden_act",
        "swoosh",
        "hidden_act: is 'swoosh', which is not supported",
    ),
    (TEXT, "rope_parameters.rope_theta", "10000", "rope_theta: is '10000', not a number"),
    (TEXT, "rope_parameters.rope_theta", 0, "rope_theta: is 0, not above 0"),
    (CSM, "rope_parameters.factor", None, "rope_parameters.factor: is None, not a number"),
    (
        QWEN3,
        "thinker_config.audio_token_id",
        "a",
        "audio_token_id: TypeError: Field 'audio_token_id' expected int",
    ),
    (CSM, "audio_token_id", 0, "gives 0 placeholders for 1 parts of kind audio"),
    (QWEN3, "im_start_token_id", 1, "config.json: im_start_token_id: is not the token that opens turns"),
    (QWEN3, "assistant_token_id", 1, "config.json: assistant_token_id: is not the token that opens turns"),
    (TEXT, "max_position_embeddings", 1, "max_position_embeddings: is 1, below 16"),
    (QWEN3, f"{THINKER}.num_hidden_layers", "many", "'num_hidden_layers' expected int"),
    (QWEN3, "thinker_config", 3, "use a published Qwen3-Omni folder"),
    (QWEN3, "talker_config", {}, "config.json: talker_config.text_config.shared_expert"),
    (QWEN3, f"{THINKER}.hidden_size", 80, "audio_config.output_dim: is 64, not 80; use the file that belongs to these"),
    (QWEN3, f"{THINKER}.moe_intermediate_size", 80, "expected (64, 80), found (64, 32); use the config.json that"),
    (QWEN3, f"{TALKER}.num_hidden_layers", 1, "use a checkpoint whose config.json describes its weights"),
    (TEXT, "hidden_size", 10**400, "hidden_size: is a number of 1,329 bits, too large"),
]


SpoilField = Callable[..., Path]


@pytest.fixture
def spoil_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpoilField:
    """Copies a family's checkpoint, with another value of a field."""

    def spoil_field(family: str, path: str, value: object, file: str = "config.json") -> Path:
        monkeypatch.setitem(VALUES, "this", value)
        place = tuple(int(part) if part.isdigit() else part for part in path.split("."))
        return spoil(FAMILIES[family](), tmp_path / "model", Fault(file, place, "this"))

    return spoil_field


def load(folder: Path, **settings: object) -> Omni:
    return Omni(folder, device="cpu", plugins=tiny_plugins(), overrides=settings)


@pytest.mark.parametrize(
    ("family", "path", "value", "words"), NAMED, ids=[f"{n[0]}-{n[1]}={str(n[2])[:20]}" for n in NAMED]
)
def test_a_faulty_field_of_a_config_is_named(
    spoil_field: SpoilField, family: str, path: str, value: Any, words: str
) -> None:
    folder = spoil_field(family, path, value)
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load(folder)
    assert words in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_decoder_without_heads_has_those_of_its_kind(tmp_path: Path) -> None:
    """A missing value has transformers' default, and then the weights do not fit."""
    folder = spoil(FAMILIES["text"](), tmp_path / "model", Fault("config.json", ("num_attention_heads",), "deleted"))
    with pytest.raises(CheckpointError, match=r"num_attention_heads|wrong tensor shape"):
        load(folder)


PREPROCESSOR, TOKENIZER = "preprocessor_config.json", "tokenizer_config.json"
FILES: list[tuple[str, str, str, Any, str]] = [
    (CSM, "tokenizer.json", "added_tokens.0.id", 2**40, ": added_tokens[0].id: Expected `int` <= 4194303"),
    (CSM, "tokenizer.json", "added_tokens.0.content", 3, ": added_tokens[0].content: Expected `str`"),
    (QWEN3, PREPROCESSOR, "image_std.1", 0, ": image_std[1]: Expected `float` > 0.0"),
    (QWEN3, PREPROCESSOR, "hop_length", "x", ": hop_length: Expected `int`"),
    (QWEN3, PREPROCESSOR, "feature_size", 80, ": gives features of 80 values"),
    (QWEN3, PREPROCESSOR, "patch_size", 14, ""),
    (QWEN3, PREPROCESSOR, "do_resize", None, ": do_resize: is None, not True"),
    (QWEN3, PREPROCESSOR, "merge_size", 1, ": merge_size: is 1, beside 2 of config.json"),
    (QWEN3, "generation_config.json", "temperature", "hot", ": temperature"),
    (QWEN2_5, TOKENIZER, "audio_token", None, ": audio_token"),
    (QWEN2_5, TOKENIZER, "image_token", "<|IMAGES|>", ": image_token"),
]


@pytest.mark.parametrize(("family", "file", "path", "value", "words"), FILES, ids=[f"{n[1]}-{n[2]}" for n in FILES])
def test_spoiled_fields_of_other_files_are_named(
    spoil_field: SpoilField, family: str, file: str, path: str, value: Any, words: str
) -> None:
    folder = spoil_field(family, path, value, file)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert file + words in str(caught.value)


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
def test_a_template_with_other_than_one_placeholder(spoil_field: SpoilField, audio: str, words: str) -> None:
    folder = spoil_field(CSM, "use_cache", True, "generation_config.json")
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("X", audio))
    with pytest.raises(CheckpointError, match=rf"^chat_template\.jinja: {words}"):
        load(folder)


def test_a_template_that_drops_the_text(spoil_field: SpoilField) -> None:
    folder = spoil_field(TEXT, "do_sample", True, "generation_config.json")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(CheckpointError, match=r"^chat_template\.jinja: leaves out the text of a message"):
        load(folder)


def test_a_template_longer_than_any_prompt(spoil_field: SpoilField) -> None:
    folder = spoil_field(TEXT, "do_sample", True, "generation_config.json")
    filler = " filler" * 200
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}" + filler)
    words = r"^chat_template: renders a chat of one word as [\d,]+ tokens, and text takes 64 tokens.*max_model_len$"
    with pytest.raises(CheckpointError, match=words):
        load(folder, **{"text.max_model_len": 64})


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
            load(tmp_path)


def test_weights_in_another_format_are_not_called_missing(spoil_field: SpoilField) -> None:
    folder = spoil_field(TEXT, "do_sample", True, "generation_config.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds weights as pytorch_model\.bin, a format that is not supported"):
        load(folder)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("thinker.max_model_len", 10**6, "1000000 is longer than the model's 1024 positions; lower it"),
        ("code2wav.chunk_frames", 10**6, "must be at least 1, at most 65,536; use a value in the range it names"),
    ],
)
def test_a_bad_setting_is_refused(setting: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(FAMILIES[QWEN3](), **{setting: value})
    assert caught.value.field == setting
    assert words in str(caught.value)


def test_settings_are_checked_before_weights_are_read(spoil_field: SpoilField) -> None:
    folder = spoil_field(QWEN3, "do_sample", True, "generation_config.json")
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(ConfigError, match="there is no stage 'narrator'; use one of audio_encoder, vision_encoder"):
        load(folder, **{"narrator.speed": 1})


def test_a_failed_load_harms_no_model_that_is_loaded(spoil_field: SpoilField) -> None:
    broken = spoil_field(QWEN3, "thinker_config", 3)
    with load(FAMILIES[QWEN3]()) as omni:
        bystander, before = Bystander.of(omni), threading.active_count()
        with bystander.beside(omni), pytest.raises(CheckpointError):
            load(broken)
        assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("family", "stage"), [(TEXT, "text"), (QWEN3, "thinker"), (QWEN3, "talker"), (CSM, "backbone")]
)
def test_too_few_blocks_for_any_request_are_refused(family: str, stage: str) -> None:
    words = rf"^{stage}\.num_blocks: 2 hold 32 tokens, and a request .* use at least \d+, or"
    with pytest.raises(ConfigError, match=words):
        load(FAMILIES[family](), **{f"{stage}.num_blocks": 2})


def test_two_blocks_do_for_requests_that_are_short_by_default() -> None:
    few = {"text.num_blocks": 2, "text.sampling.max_tokens": 3}
    with load(FAMILIES[TEXT](), **few) as omni:
        assert next(iter(omni.generate("hello"))).error is None


WIDE = [
    (QWEN2_5, f"{VISION}.hidden_size"),
    ("qwen3_omni", f"{THINKER}.hidden_size"),
    ("text", "intermediate_size"),
]


@pytest.mark.parametrize(("family", "path"), WIDE, ids=[family for family, _ in WIDE])
def test_a_width_that_the_weights_do_not_have_takes_no_memory(spoil_field: SpoilField, family: str, path: str) -> None:
    folder = spoil_field(family, path, 65536)
    with memory_bounded(4), pytest.raises((CheckpointError, ConfigError)):
        load(folder)
