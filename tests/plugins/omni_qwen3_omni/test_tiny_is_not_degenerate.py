"""A tiny model whose output ignores something hides every error in it. Shown with transformers' own generate()."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

from omni_qwen3_omni.tiny import write_tiny
from tests.support.reference import load_processor
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`:UserWarning")

QUESTION = {"type": "text", "text": "hello world, what is it?"}
RNG = np.random.default_rng(0)
PICTURES = [Image.fromarray(RNG.integers(0, 256, (96, 128, 3), dtype=np.uint8)) for _ in range(2)]
SOUNDS = [RNG.standard_normal(24000).astype(np.float32) * 0.1 for _ in range(2)]


@dataclass
class Answer:
    prompt: list[int]
    ids: list[int]
    codes_QN: torch.Tensor
    wav: torch.Tensor


@dataclass
class Reference:
    model: Any
    processor: Qwen3OmniMoeProcessor

    def answer(
        self,
        *media: dict[str, str],
        images: list[Image.Image] | None = None,
        audio: list[np.ndarray] | None = None,
        question: dict[str, str] = QUESTION,
        voice: str = "ethan",
        text_tokens: int = 30,
        frames: int = 30,
    ) -> Answer:
        messages = [{"role": "user", "content": [*media, question]}]
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = self.processor(text=text, images=images, audio=audio, return_tensors="pt")
        codes: list[torch.Tensor] = []
        hook = self.model.code2wav.register_forward_pre_hook(lambda _, args: codes.append(args[0]))
        ids, wav = self.model.generate(
            **inputs,
            speaker=voice,
            thinker_max_new_tokens=text_tokens,
            thinker_do_sample=False,
            thinker_eos_token_id=self.model.config.im_end_token_id,
            talker_do_sample=False,
            talker_max_new_tokens=frames + 1,
        )
        hook.remove()
        prompt = inputs["input_ids"][0].tolist()
        return Answer(prompt, ids[0, len(prompt) :].tolist(), codes[0][0], wav.flatten())


def reference(folder: Path, **shape: Any) -> Reference:
    write_tiny(folder, **shape)
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    # Without it the reference cannot take sound and a picture together.
    model.config.talker_config.audio_config = model.config.thinker_config.audio_config
    return Reference(model, load_processor(folder))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return reference(tmp_path_factory.mktemp("tiny"), stop_gain=0.0, codec_stop_gain=0.0)


@pytest.fixture(scope="module")
def plain(tiny: Reference) -> Answer:
    return tiny.answer()


def test_text_and_codes_vary(plain: Answer) -> None:
    assert len(plain.ids) == 30
    assert len(set(plain.ids)) >= 12
    assert plain.codes_QN.shape == (4, 30)
    assert all(len(set(group.tolist())) >= 10 for group in plain.codes_QN)
    assert all((a != b).float().mean() > 0.8 for i, a in enumerate(plain.codes_QN) for b in plain.codes_QN[:i])


def test_sound_is_audible_and_not_clipped(tiny: Reference, plain: Answer) -> None:
    assert 0.2 < plain.wav.abs().max() < 0.8
    assert plain.wav.std() > 0.02


def test_voices_differ_in_speech_alone(tiny: Reference, plain: Answer) -> None:
    others = [tiny.answer(voice=voice) for voice in ("chelsie", "aiden")]
    assert all(other.ids == plain.ids for other in others)
    first, second, third = (a.codes_QN for a in (plain, *others))
    assert all((a != b).float().mean() > 0.5 for a, b in ((first, second), (second, third), (first, third)))


@pytest.mark.slow
def test_pictures_and_sounds_change_text_and_speech(tiny: Reference, plain: Answer) -> None:
    answers = [plain]
    answers += [tiny.answer({"type": "image"}, images=[picture]) for picture in PICTURES]
    answers += [tiny.answer({"type": "audio"}, audio=[sound]) for sound in SOUNDS]
    answers += [tiny.answer({"type": "image"}, {"type": "audio"}, images=PICTURES[:1], audio=SOUNDS[:1])]
    assert len({tuple(answer.ids) for answer in answers}) == len(answers)
    assert len({tuple(answer.codes_QN.flatten().tolist()) for answer in answers}) == len(answers)


@pytest.mark.parametrize(
    ("kind", "media"), few(1, [("audio", {"audio": SOUNDS[:1]}), ("image", {"images": PICTURES[:1]})], SLOW)
)
def test_speech_hears_the_hidden_states_of_media(tiny: Reference, kind: str, media: dict[str, Any]) -> None:
    """Another accepted layer changes what is said of a picture or a sound, and nothing else."""
    talker = tiny.model.config.talker_config
    with_media, without = tiny.answer({"type": kind}, **media), tiny.answer()
    talker.accept_hidden_layer -= 1
    try:
        with_media_1, without_1 = tiny.answer({"type": kind}, **media), tiny.answer()
    finally:
        talker.accept_hidden_layer += 1
    assert with_media.ids == with_media_1.ids
    assert (with_media.codes_QN != with_media_1.codes_QN).float().mean() > 0.5
    assert torch.equal(without.codes_QN, without_1.codes_QN)


def test_speech_hears_every_token_of_the_text(tiny: Reference) -> None:
    """Token i of the text is heard from frame i on; the end of the text stands in place of the last token."""
    embedding = tiny.model.thinker.get_input_embeddings().weight
    projection = tiny.model.talker.text_projection
    whole = tiny.answer(text_tokens=10, frames=12)
    heard = set(whole.ids[:-1]) - set(whole.prompt)
    assert len(heard) > 3
    for token in heard:
        first = whole.ids.index(token)
        vector = embedding[token]
        hook = projection.register_forward_hook(
            lambda _, args, out, vector=vector: torch.where((args[0] == vector).all(-1, True), -out, out)
        )
        other = tiny.answer(text_tokens=10, frames=12)
        hook.remove()
        assert other.ids == whole.ids
        assert torch.equal(other.codes_QN[:, :first], whole.codes_QN[:, :first])
        assert not torch.equal(other.codes_QN, whole.codes_QN), f"token {first} is not heard"


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


def test_both_models_stop_by_themselves(tmp_path: Path) -> None:
    lively = reference(tmp_path, stop_gain=2.0, codec_stop_gain=2.0)
    answer = lively.answer(text_tokens=300, frames=300)
    assert answer.ids[-1] == lively.model.config.im_end_token_id
    assert 2 < len(answer.ids) < 300
    assert 1 < answer.codes_QN.shape[1] < 300


SHAPES = [
    {"layers": 2, "heads": 2, "kv_heads": 1, "experts": 8, "top_k": 3, "groups": 3, "accept_hidden_layer": 1},
    {"layers": 4, "heads": 6, "kv_heads": 3, "head_dim": 32, "deepstack": (0, 1, 2), "accept_hidden_layer": 2},
    {"talker_layers": 3, "talker_heads": 4, "talker_kv_heads": 2, "talker_experts": 6, "talker_top_k": 4, "groups": 8},
    {"hidden_size": 48, "talker_hidden_size": 32, "shared_expert_size": 16, "codebook_size": 48, "voices": ("ethan",)},
    {"vocoder_layers": 3, "vocoder_heads": 4, "vocoder_kv_heads": 2, "vocoder_window": 8, "predictor_layers": 3},
    {"upsample_rates": (4, 3), "upsampling_ratios": (2,), "decoder_size": 32, "vision_layers": 4, "deepstack": (1, 2)},
]


@pytest.mark.parametrize("seed", few(2, range(len(SHAPES)), SLOW))
def test_other_shapes_live_too(tmp_path: Path, seed: int) -> None:
    other = reference(tmp_path, seed=seed, stop_gain=0.0, codec_stop_gain=0.0, **SHAPES[seed])
    media = ({"type": "image"}, {"type": "audio"})
    answers = [other.answer(*media, images=PICTURES[:1], audio=[sound], text_tokens=16, frames=16) for sound in SOUNDS]
    for answer in answers:
        assert len(set(answer.ids)) >= 6
        assert len(answer.codes_QN.unique()) >= 10
        assert 0.2 < answer.wav.abs().max() < 0.8
    assert answers[0].ids != answers[1].ids
    assert not torch.equal(answers[0].codes_QN, answers[1].codes_QN)
