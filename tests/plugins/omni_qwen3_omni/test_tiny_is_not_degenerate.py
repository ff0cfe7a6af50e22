"""A tiny model whose output ignores something hides every error in it. Shown with transformers' own generate()."""

from typing import Any

import pytest
import torch

from tests.support.reference import Answer, Reference, chat, picture, reference_of, sound, tiny_checkpoint
from tests.support.tiers import SLOW, few

QUESTION = "hello world, what is it?"


@pytest.fixture(scope="module")
def tiny() -> Reference:
    return Reference(tiny_checkpoint(stop_gain=0.0, codec_stop_gain=0.0))


@pytest.fixture(scope="module")
def plain(tiny: Reference) -> Answer:
    return tiny.generate(chat(QUESTION, max_text=30, max_codes=31))


def test_text_and_codes_vary_and_sound_is_audible_and_not_clipped(plain: Answer) -> None:
    assert len(plain.ids) == 30
    assert len(set(plain.ids)) >= 12
    assert plain.codes.shape == (4, 30)
    assert all(len(set(group.tolist())) >= 10 for group in plain.codes)
    assert all((a != b).float().mean() > 0.8 for i, a in enumerate(plain.codes) for b in plain.codes[:i])
    assert 0.2 < abs(plain.wave).max() < 0.8
    assert plain.wave.std() > 0.02


@pytest.mark.parametrize("kind", few(1, ["audio", "image"], SLOW))
def test_speech_hears_the_hidden_states_of_media(tiny: Reference, plain: Answer, kind: str) -> None:
    """Another accepted layer changes what is said of a picture or a sound, and nothing else."""
    talker = tiny.model.config.talker_config
    medium = sound(1.5) if kind == "audio" else picture(128, 96)
    asked = chat(medium, QUESTION, max_text=30, max_codes=31)
    with_media = tiny.generate(asked)
    talker.accept_hidden_layer -= 1
    try:
        with_media_1, without_1 = tiny.generate(asked), tiny.generate(chat(QUESTION, max_text=30, max_codes=31))
    finally:
        talker.accept_hidden_layer += 1
    assert with_media.ids == with_media_1.ids
    assert (with_media.codes != with_media_1.codes).float().mean() > 0.5
    assert torch.equal(plain.codes, without_1.codes)


def test_the_vocoder_listens_to_its_context(tiny: Reference) -> None:
    """A frame is heard, far above any tolerance, for as long as the windows of all layers reach."""
    vocoder, config = tiny.model.code2wav, tiny.model.config.code2wav_config
    generator = torch.Generator().manual_seed(0)
    codes_BQN = torch.randint(config.codebook_size, (1, config.num_quantizers, 60), generator=generator)
    changed = codes_BQN.clone()
    changed[:, :, 0] = (changed[:, :, 0] + 1) % config.codebook_size
    with torch.no_grad():
        wav, other = vocoder(codes_BQN).flatten(), vocoder(changed).flatten()
    per_frame = (wav - other)[: 59 * 1920].abs().view(59, 1920).amax(1) / wav.abs().max()
    window = config.sliding_window
    assert (per_frame[: window - 1] > 0.1).all()
    reach = config.num_hidden_layers * (window - 1)
    assert per_frame[window - 1 : reach].min() > 0.01
    # Beyond the transformer's reach there are only the convolutions.
    assert per_frame[reach + 20 :].max() == 0.0


def test_both_models_stop_by_themselves() -> None:
    lively = reference_of(tiny_checkpoint(stop_gain=2.0, codec_stop_gain=2.0))
    answer = lively.answer(chat(QUESTION, max_text=300, max_codes=301))
    assert answer.ids[-1] == lively.model.config.im_end_token_id
    assert 2 < len(answer.ids) < 300
    assert 1 < answer.codes.shape[1] < 300


SHAPES: list[dict[str, Any]] = [
    {"layers": 2, "heads": 2, "kv_heads": 1, "experts": 8, "top_k": 3, "groups": 3, "accept_hidden_layer": 1},
    {"layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 32, "deepstack": (0, 1, 2), "accept_hidden_layer": 2},
    {"talker_layers": 3, "talker_heads": 4, "talker_kv_heads": 2, "talker_experts": 6, "talker_top_k": 4, "groups": 8},
    {"hidden_size": 48, "talker_hidden_size": 32, "shared_expert_size": 16, "codebook_size": 48, "voices": ("ethan",)},
    {"vocoder_layers": 3, "vocoder_heads": 4, "vocoder_kv_heads": 2, "vocoder_window": 8, "predictor_layers": 3},
    {"upsample_rates": (4, 3), "upsampling_ratios": (2,), "decoder_size": 32, "vision_layers": 4, "deepstack": (1, 2)},
]


@pytest.mark.parametrize("seed", few(2, range(len(SHAPES)), SLOW))
def test_other_shapes_live_too(seed: int) -> None:
    other = reference_of(tiny_checkpoint(seed=seed, stop_gain=0.0, codec_stop_gain=0.0, **SHAPES[seed]))
    asked = [chat(picture(128, 96), sound(1.5, n), QUESTION, max_text=16, max_codes=17) for n in range(2)]
    answers = [other.answer(one) for one in asked]
    for answer in answers:
        assert len(set(answer.ids)) >= 6
        assert len(answer.codes.unique()) >= 10
        assert 0.2 < abs(answer.wave).max() < 0.8
    assert answers[0].ids != answers[1].ids
    assert not torch.equal(answers[0].codes, answers[1].codes)
