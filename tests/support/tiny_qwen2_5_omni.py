"""Tiny Qwen2.5-Omni checkpoints, and what transformers makes of them.

Shape legend: T tokens of a prompt, D the thinker's width, M mel bins, S samples.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2Tokenizer
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniBigVGANConfig,
    Qwen2_5OmniToken2WavConfig,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)

from omni.checkpoint import Checkpoint
from omni.device.cpu import CpuDevice
from omni.frontend.base import Chat
from omni.pipeline import Stage
from omni.stage import StageContext
from omni.utils.quiet import quiet
from omni_ar.inputs import Prompt
from omni_ar.options import ArOptions
from omni_diffusion.model import Windows
from omni_qwen2_5_omni.frontend import build
from omni_qwen2_5_omni.tiny import write_tiny
from omni_qwen2_5_omni.token2wav import Token2Wav
from omni_qwen2_5_omni.token2wav.bigvgan import BigVGAN
from omni_qwen2_5_omni.voices import VoiceReference
from tests.support.published import copy_weights
from tests.support.received import tensors_of
from tests.support.reference import temporary_folder

# Diffusion transformers and BigVGANs of transformers with random weights under which every part is heard, and ours with the same.
#
# Shape legend: B rows, M mel bins, N codes, T mel frames.

SMALL_DIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "head_dim": 16,
    "emb_dim": 12,
    "mel_dim": 8,
    "block_size": 8,
    "look_ahead_layers": [2],
    "look_backward_layers": [0, 3],
    "num_embeds": 20,
    "enc_emb_dim": 6,
    "enc_dim": 10,
    "enc_channels": [8, 8, 8, 16],
    "enc_kernel_sizes": [5, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 1],
    "enc_attention_channels": 4,
    "enc_se_channels": 4,
}
SMALL_BIGVGAN: dict[str, Any] = {
    "mel_dim": 8,
    "upsample_initial_channel": 32,
    "upsample_rates": [5, 3, 2],
    "upsample_kernel_sizes": [11, 7, 4],
}


@torch.no_grad()
def enliven(model: nn.Module, seed: int, gain: float = 1.0) -> None:
    """Matrices that keep the scale of what they multiply, and biases and logarithms about zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.copy_(noise * gain / fan_in**0.5)


@contextmanager
def noise_is(noise: Tensor) -> Iterator[None]:
    """Within, what transformers draws is `noise`."""

    def drawn(size: Sequence[int], **_: Any) -> Tensor:
        assert list(size) == list(noise.shape)
        return noise.clone()

    with patch("torch.randn", drawn):
        yield


@dataclass(frozen=True)
class DiTPair:
    """steps, guidance: of the solver, and of the branches. speaker_V, reference_TM: the first voice; the second is another.

    reference, vocoder: transformers' own.
    """

    ours: Token2Wav
    reference: Any
    vocoder: Any
    steps: int
    guidance: float
    speaker_V: Tensor
    reference_TM: Tensor

    @classmethod
    def of(
        cls, steps: int = 3, guidance: float = 0.5, remembers: bool = False, device: str = "cpu", **shape: Any
    ) -> "DiTPair":
        config = Qwen2_5OmniToken2WavConfig(dit_config=SMALL_DIT | shape, bigvgan_config=SMALL_BIGVGAN)
        reference = Qwen2_5OmniToken2WavDiTModel._from_config(config.dit_config, attn_implementation="sdpa").eval()
        enliven(reference, seed=1)
        ours = Token2Wav(config, num_steps=steps, guidance=guidance, remembers=remembers)
        copy_weights(ours.net, reference.state_dict())
        vocoder = bigvgan_pair()[1]
        copy_weights(ours.renderer, vocoder.state_dict())
        generator = torch.Generator().manual_seed(2)
        speaker_V = torch.randn(SMALL_DIT["enc_emb_dim"], generator=generator)
        reference_TM = torch.randn(30, 8, generator=generator)
        voices = {
            "a": VoiceReference(0, speaker_V, reference_TM),
            "b": VoiceReference(0, -speaker_V, reference_TM.flip(1)),
        }
        ours.to(device).prepare(voices)
        return cls(ours, reference, vocoder, steps, guidance, speaker_V, reference_TM)

    def codes(self, count: int, seed: int = 0) -> Tensor:
        return torch.randint(20, (count,), generator=torch.Generator().manual_seed(seed))

    def noise(self, codes: int, seed: int = 0) -> Tensor:
        """`[frames, M]`."""
        return torch.randn((codes * self.ours.repeats, 8), generator=torch.Generator().manual_seed(seed + 100))

    @torch.no_grad()
    def expected(self, codes_N: Tensor, noise_TM: Tensor, voice: int = 0) -> Tensor:
        """What transformers makes of the noise, `[frames, M]`."""
        speaker_V, reference_TM = self.speaker_V, self.reference_TM
        if voice:
            speaker_V, reference_TM = -speaker_V, reference_TM.flip(1)
        with noise_is(noise_TM[None]):
            mel_1MT: Tensor = self.reference.sample(
                speaker_V[None],
                reference_TM[None],
                codes_N[None],
                num_steps=self.steps + 1,
                guidance_scale=self.guidance,
            )
        assert mel_1MT.std() > 0.3, "the reference is mute"
        return mel_1MT[0].T

    @torch.no_grad()
    def voiced(self, mel_TM: Tensor) -> Tensor:
        """transformers' waveform `[S]` of a spectrogram; neither silent nor clipped."""
        wave_S: Tensor = self.vocoder(mel_TM.T[None])
        assert 0.05 < wave_S.abs().max() < 0.95
        return wave_S


@dataclass
class Denoised:
    """A window. first, context, fresh: as in `omni_diffusion.model.Windows`. step: how many it has behind it."""

    row: int
    codes_N: Tensor
    latents_TM: Tensor
    first: int = 0
    context: int = 0
    fresh: int | None = None
    voice: int = 0
    step: int = 0


class Rows:
    """Windows of a model, as a stage runs them: in batches that are padded with the null row, to one length."""

    def __init__(self, pair: DiTPair, rows: int = 3, frames: int = 48) -> None:
        self.model, self._null, self._frames = pair.ours, rows, frames
        self._device = next(pair.ours.parameters()).device
        self.state = pair.ours.new_state(rows + 1, frames)

    @torch.no_grad()
    def begin(self, *windows: Denoised) -> None:
        lines = [
            (
                w.row,
                w.first,
                w.context,
                len(w.codes_N) - w.context if w.fresh is None else w.fresh,
                len(w.codes_N),
                w.voice,
            )
            for w in windows
        ]
        columns = torch.tensor([*lines, (self._null, 0, 0, 1, 1, 0)]).T
        codes_BNG = torch.zeros(len(lines) + 1, self._frames, 1, dtype=torch.int64)
        for line, window in zip(codes_BNG, windows, strict=False):
            line[: len(window.codes_N), 0] = window.codes_N
        row, first, context, fresh, frames, voice = columns.to(self._device)
        windows_B = Windows(row, first, context, fresh, frames, voice, codes_BNG.to(self._device))
        self.model.begin(self.state, windows_B)

    def step(self, *windows: Denoised) -> None:
        """Each window a step on."""
        block, repeats = self.model.block_frames, self.model.repeats
        blocks = max(-(-len(window.codes_N) // block) for window in windows)
        latents_BTM = torch.zeros(len(windows) + 1, blocks * block * repeats, 8)
        for line, window in zip(latents_BTM, windows, strict=False):
            line[: len(window.latents_TM)] = window.latents_TM
        rows_B = torch.tensor([*(window.row for window in windows), self._null])
        steps_B = torch.tensor([*(window.step for window in windows), 0])
        given = (given.to(self._device) for given in (latents_BTM, rows_B, steps_B))
        out_BTM = self.model.denoise(self.state, *given)
        for line, window in zip(out_BTM.cpu(), windows, strict=False):
            # What pads a row is left as it comes out, as a stage leaves it.
            window.latents_TM, window.step = line, window.step + 1

    def finish(self, *windows: Denoised) -> list[Tensor]:
        """All steps that are left of each, together as long as there are any; the frames of each."""
        while left := [window for window in windows if window.step < self.model.num_steps]:
            self.step(*left)
        return [window.latents_TM[: len(window.codes_N) * self.model.repeats] for window in windows]

    def whole(self, codes_N: Tensor, noise_TM: Tensor, voice: int = 0) -> Tensor:
        window = Denoised(0, codes_N, noise_TM, voice=voice)
        self.begin(window)
        return self.finish(window)[0]


@torch.no_grad()
def bigvgan_pair(**shape: Any) -> tuple[BigVGAN, Any]:
    """Ours and transformers', whose waveform of `random_mel` peaks at about a half."""
    config = Qwen2_5OmniBigVGANConfig(**(SMALL_BIGVGAN | shape))
    reference = Qwen2_5OmniToken2WavBigVGANModel._from_config(config).eval()
    enliven(reference, seed=3, gain=0.8)
    reference.conv_post.weight.mul_(1e-3)
    reference.conv_post.weight.mul_(0.5 / reference(random_mel(60)).abs().max())
    ours = BigVGAN(config)
    copy_weights(ours, reference.state_dict())
    return ours, reference


def random_mel(frames: int, seed: int = 0) -> Tensor:
    """`[1, M, frames]`, of levels that are neither all below the floor nor all above the ceiling."""
    return 2 * torch.randn(1, 8, frames, generator=torch.Generator().manual_seed(seed)) - 3


@cache
def tiny_folder(seed: int = 0, **shape: Any) -> Path:
    """A checkpoint of this seed and shape, written once per test run."""
    folder = temporary_folder()
    write_tiny(folder, seed=seed, **{"max_positions": 1024, **shape})
    return folder


@cache
def reference_model(folder: Path) -> Any:
    with quiet():
        model = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    if model.has_talker:
        _keep_mask(model.talker)
    return model


def _keep_mask(talker: Any) -> None:
    """Newer versions of transformers drop a mask of ones (seen in 5.24), without which the talker's prompt lacks its last two
    codec embeddings and its rotary positions."""
    prepare = talker.prepare_inputs_for_generation

    @wraps(prepare)  # `generate` reads its signature
    def with_mask(input_ids: Tensor, *arguments: Any, **named: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = prepare(input_ids, *arguments, **named)
        if inputs.get("attention_mask") is None:
            inputs["attention_mask"] = torch.ones_like(input_ids)
        return inputs

    talker.prepare_inputs_for_generation = with_mask


def stage_context(folder: Path, name: str) -> StageContext:
    """As an engine on the CPU would build the stage."""
    stage = Stage(name=name, kind="ar", model="unused:here", options=ArOptions())
    return StageContext(
        stage=stage,
        options=stage.options,
        checkpoint=Checkpoint(folder),
        device=CpuDevice(),
        dtype=torch.float32,
        load_format="auto",
    )


def prompt_ids(folder: Path, text: str) -> Tensor:
    """int64 `[T]` of a chat of one message."""
    tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return torch.tensor(tokenizer(chat)["input_ids"])


@dataclass(frozen=True)
class Spoken:
    """ids: the thinker's answer. codes: that were chosen, the one that ended them included."""

    ids: list[int]
    codes: list[int]


@torch.no_grad()
def speak(
    folder: Path, prompt_T: Tensor, tokens: int = 8, codes: int = 20, voice: str = "Chelsie", **media: Any
) -> Spoken:
    """transformers' own `generate`, greedy, but for the sound. media: features, as its processor gives them."""
    model = reference_model(folder)
    talker, chosen = model.talker.generate, []

    def listen(**arguments: Any) -> Tensor:
        sequences: Tensor = talker(**arguments)
        chosen.append(sequences)
        return sequences

    if "pixel_values" in media:
        # Without a prefix they reach the talker, too, which refuses them.
        media["thinker_pixel_values"] = media.pop("pixel_values")
    silence = patch.object(model.token2wav, "forward", lambda *_, **__: torch.zeros(1, 8))
    with patch.object(model.talker, "generate", listen), silence:
        sequences, _ = model.generate(
            input_ids=prompt_T[None],
            attention_mask=torch.ones_like(prompt_T)[None],
            speaker=voice,
            thinker_max_new_tokens=tokens,
            thinker_do_sample=False,
            talker_max_new_tokens=codes,
            talker_do_sample=False,
            talker_eos_token_id=[model.talker.codec_pad_token, model.talker.codec_eos_token],
            **media,
        )
    start = len(prompt_T)
    return Spoken(sequences[0, start:].tolist(), chosen[0][0, start + 2 :].tolist())


@torch.no_grad()
def sound_of(folder: Path, codes: list[int], noise_TM: Tensor, voice: str, steps: int) -> Tensor:
    """transformers' waveform `[S]` of codes, the one that ends them included, and of noise for as many frames or more."""
    model = reference_model(folder)
    said = [code for code in codes if code not in (model.talker.codec_pad_token, model.talker.codec_eos_token)]
    given = model.speaker_map[voice]
    with noise_is(noise_TM[None, : len(said) * model.token2wav.code2wav_dit_model.repeats]):
        wave: Tensor = model.token2wav(
            torch.tensor([said]), conditioning=given["cond"], reference_mel=given["ref_mel"], num_steps=steps + 1
        )
    return wave.reshape(-1)


def given(folder: Path, chat: Chat) -> tuple[Tensor, dict[str, Any]]:
    """The prompt `[T]` of a chat, and its media as arguments of `generate`: as the front end has them, whose features are compared
    with the published processor's elsewhere."""
    inputs = build(Checkpoint(folder)).prepare(chat).inputs
    media: dict[str, Any] = {}
    if pictures := inputs.get("vision_encoder"):
        media["pixel_values"] = torch.cat([tensors_of(payload)["pixels"] for payload in pictures])
        media["image_grid_thw"] = torch.stack([tensors_of(payload)["grid"] for payload in pictures])
    if clips := inputs.get("audio_encoder"):
        features = [tensors_of(payload)["features"].T for payload in clips]
        ones = [torch.ones(len(feature), dtype=torch.int64) for feature in features]
        media["input_features"] = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).transpose(1, 2)
        media["feature_attention_mask"] = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
    prompt = inputs["thinker"][0].meta
    assert isinstance(prompt, Prompt)
    return torch.from_numpy(prompt.columns[0]), media
