"""Expected speech of the family in examples/speech: transformers' decoders and plain torch, recomputed for each code.

Shapes: T positions, D width, C channels, S samples.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from omni.frontend.base import Chat, Message, TextPart
from omni.plugin import locate
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import SamplingParams
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from tests.support.omni_engine import Result


@dataclass(frozen=True, slots=True)
class Speech:
    """frames: of G codes each. wave: `[S]`. reason: why it ended."""

    frames: list[list[int]]
    wave: NDArray[np.float32]
    reason: str


class PlainSpeech:
    """One request at a time, greedy, in float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self._weights = load_file(folder / "model.safetensors")
        self._talker = self._decoder("talker.model.", self._config["talker"])
        self._predictor = self._decoder("talker.code_predictor.model.", self._config["code_predictor"])
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)

    def speak(self, text: str, max_tokens: int) -> Speech:
        """The token that ends the speech, or is the last that it may have, has no frame."""
        ids = [*self._tokenizer(text)["input_ids"], self._config["speak_token"]]
        inputs = list(self._weights["talker.model.embed_tokens.weight"][ids])
        frames: list[list[int]] = []
        while True:
            hidden_D = _newest(self._talker, inputs)
            token = self._best("talker.codec_head.weight", hidden_D)
            if token == self._config["codebook_size"]:
                return Speech(frames, self.sound(frames), "stop")
            if len(frames) == max_tokens - 1:
                return Speech(frames, self.sound(frames), "length")
            frame, embedded = self._frame(hidden_D, token)
            frames.append(frame)
            inputs.append(torch.stack(embedded).sum(0))

    @torch.no_grad()
    def tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """The first codes of so many frames, whatever ends the speech."""
        inputs = list(self._weights["talker.model.embed_tokens.weight"][list(prompt)])
        made: list[int] = []
        while len(made) < count:
            hidden_D = _newest(self._talker, inputs)
            made.append(self._best("talker.codec_head.weight", hidden_D))
            _, embedded = self._frame(hidden_D, made[-1])
            inputs.append(torch.stack(embedded).sum(0))
        return made

    def sound(self, frames: list[list[int]]) -> NDArray[np.float32]:
        """The whole waveform of the frames at once, `[S]`."""
        if not frames:
            return np.empty(0, np.float32)
        tables = [self._weights[f"vocoder.tables.{group}.weight"] for group in range(self._config["num_groups"])]
        codes_TG = torch.tensor(frames)
        x_1CT = torch.stack([table[codes_TG[:, g]] for g, table in enumerate(tables)]).sum(0).T[None]
        x_1CT = self._conv("vocoder.layers.0.conv.", x_1CT)
        layer = 1
        for rate in self._config["vocoder"]["rates"]:
            length = rate * x_1CT.shape[2]
            weight, bias = self._pair(f"vocoder.layers.{layer + 1}.conv.")
            x_1CT = F.conv_transpose1d(F.elu(x_1CT), weight, bias, stride=rate)[:, :, :length]
            x_1CT = x_1CT + self._conv(f"vocoder.layers.{layer + 2}.block.1.conv.", F.elu(x_1CT), dilation=3)
            layer += 3
        return self._conv(f"vocoder.layers.{layer + 1}.conv.", F.elu(x_1CT)).flatten().clamp(-1, 1).numpy()

    def _frame(self, hidden_D: Tensor, code0: int) -> tuple[list[int], list[Tensor]]:
        """A frame and the embeddings of its codes."""
        part = "talker.code_predictor."
        frame, embedded = [code0], [self._weights["talker.codec_embedding.weight"][code0]]
        for group in range(1, self._config["num_groups"]):
            state_D = _newest(self._predictor, [hidden_D, *embedded])
            frame.append(self._best(f"{part}lm_head.{group - 1}.weight", state_D))
            embedded.append(self._weights[f"{part}model.codec_embedding.{group - 1}.weight"][frame[-1]])
        return frame, embedded

    def _decoder(self, prefix: str, config: dict[str, Any]) -> Qwen3Model:
        """transformers' own, whose embeddings are not used."""
        model: Qwen3Model = Qwen3Model(Qwen3Config(**config, vocab_size=1)).eval()
        weights = {name.removeprefix(prefix): w for name, w in self._weights.items() if name.startswith(prefix)}
        model.load_state_dict(
            {name: weights[name] for name in model.state_dict() if name != "embed_tokens.weight"}, False
        )
        return model

    def _conv(self, name: str, x_1CT: Tensor, dilation: int = 1) -> Tensor:
        weight, bias = self._pair(name)
        return F.conv1d(F.pad(x_1CT, ((weight.shape[2] - 1) * dilation, 0)), weight, bias, dilation=dilation)

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self._weights[f"{name}weight"], self._weights[f"{name}bias"]

    def _best(self, head: str, hidden_D: Tensor) -> int:
        return int((self._weights[head] @ hidden_D).argmax())


@torch.no_grad()
def _newest(decoder: Qwen3Model, inputs: list[Tensor]) -> Tensor:
    """The normed hidden state of the last position."""
    hidden_1TD: Tensor = decoder(inputs_embeds=torch.stack(inputs)[None]).last_hidden_state
    return hidden_1TD[0, -1]


# The family of examples/speech, found as a stranger's plugin is, and what tests ask of it.

HOME = REPOSITORY / "examples" / "speech"
TEXTS = ("The quick brown fox", "a", "so it is, two three four", "grüße 你好", "blue, red or green? " * 3, "who", "ü")
MOST = 30
"""Tokens of a request."""
TOLERANCE = 1e-4
"""Of the waveform's peak."""


@cache
def plugins() -> Plugins:
    """omni's stage kinds, the family as its pyproject names it, and a tap for codes."""
    tap = EntryPoint("tap", "tests.support.tap", "omni")
    loaded = load_plugins([*own_entry_points("ar", "vocoder", "local"), *entry_points_of(HOME / "pyproject.toml"), tap])
    assert not [record.error for record in loaded.records if record.error]
    return loaded


def write_tiny(folder: Path, seed: int = 0) -> Path:
    """Its tiny checkpoint, as `omni tiny` writes it; returns the folder."""
    name = plugins().families["plain_tts"].tiny
    assert name is not None
    write = locate(name, "tiny")
    assert callable(write)
    write(folder, seed=seed)
    return folder


def greedy(max_tokens: int = MOST) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def say(text: str, sampling: SamplingParams | None = None) -> Chat:
    """A request, greedy by default."""
    return Chat((Message("user", (TextPart(text),)),), frozenset({"audio"}), None, {"talker": sampling or greedy()})


def assert_said(result: Result, speech: Speech) -> None:
    """The same codes, and the same waveform within the tolerance."""
    if result.error is not None:
        raise result.error
    assert [list(frame) for frame in result.frames] == speech.frames
    assert result.reasons["talker"] == speech.reason
    assert result.wave.shape == speech.wave.shape
    if speech.frames:
        assert abs(result.wave - speech.wave).max() <= TOLERANCE * abs(speech.wave).max()
