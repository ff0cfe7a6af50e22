"""The public interface on a tiny Qwen3-Omni, and how one request is watched while others go wrong beside it."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from omni import Omni, Output, SamplingParams
from omni.plugin.manager import Plugins
from tests.support.echo_family import eventually
from tests.support.entry_points import REPOSITORY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plugins import plugins_of

ASSETS = REPOSITORY / "examples" / "assets"
SHAPE = {"stop_gain": 0.0, "codec_stop_gain": 0.0}
"""A checkpoint that ends only at its limits, so that the length of a request is known."""

TOLERANCE = 1e-4
"""Of the peak, for waveforms that were made in different batches."""


@cache
def tiny_plugins() -> Plugins:
    """The repository's plugins, found without an installation."""
    return plugins_of()


def lengths(tokens: int, codes: int, seed: int = 1, **fields: Any) -> dict[str, SamplingParams]:
    """Sampling of a request of known length: text tokens, codec frames, and a seed for both."""
    return {
        "thinker": SamplingParams(max_tokens=tokens, seed=seed, **fields),
        "talker": SamplingParams(max_tokens=codes + 1, seed=seed),
    }


def user(*parts: str | dict[str, Any]) -> list[dict[str, Any]]:
    """A chat of one message."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


def picture(seed: int = 0, height: int = 56, width: int = 84) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return {"type": "image_url", "image_url": pixels}


def sound(seed: int = 0, seconds: float = 0.5) -> dict[str, Any]:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(16000 * seconds)).astype(np.float32)
    return {"type": "input_audio", "input_audio": samples}


def text_of(outputs: Iterable[Output]) -> str:
    return "".join(output.text for output in outputs)


def audio_of(outputs: Iterable[Output]) -> torch.Tensor:
    """float32 `[n]`, empty without audio."""
    return torch.cat([torch.empty(0), *(output.audio for output in outputs if output.audio is not None)])


def assert_like(wave: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    """Equal up to the order in which batches of different sizes are summed."""
    assert wave is not None
    assert expected is not None
    assert wave.shape == expected.shape
    assert float((wave - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


def held(omni: Any) -> dict[str, dict[str, int]]:
    """The nonzero usage of the stages."""
    usage = {name: {what: n for what, n in counts.items() if n} for name, counts in omni.usage().items()}
    return {name: counts for name, counts in usage.items() if counts}


def assert_freed(omni: Any, seconds: float = PATIENCE_SECONDS) -> None:
    """All memory is soon released, and the engine still runs."""
    assert eventually(lambda: omni.idle, seconds), held(omni)
    assert held(omni) == {}
    assert engine_threads() >= 1


def engine_threads() -> int:
    """Engines that run: their threads, or the threads that take the outputs of their processes."""
    return sum(thread.name in ("omni-engine", "omni-listener") for thread in threading.enumerate())


@dataclass(frozen=True, slots=True)
class Bystander:
    """A request and its results alone."""

    messages: Sequence[dict[str, Any]]
    sampling: dict[str, SamplingParams]
    modalities: tuple[str, ...]
    text: str
    audio: torch.Tensor

    @classmethod
    def of(cls, omni: Omni, tokens: int = 10, codes: int = 14) -> "Bystander":
        chat, sampling = user(picture(9), sound(9), "what do you see"), lengths(tokens, codes, temperature=0.7)
        outputs = list(omni.generate(chat, sampling=sampling))
        return cls(chat, sampling, omni.modalities, text_of(outputs), audio_of(outputs))

    @contextmanager
    def beside(self, omni: Omni) -> Iterator[None]:
        """A request is under way when the block begins, and has the results that it has alone."""
        stream = omni.generate(list(self.messages), sampling=self.sampling, modalities=self.modalities)
        first = next(stream)
        assert not first.finished, "it is over before anything could go wrong beside it"
        yield
        outputs = [first, *stream]
        assert outputs[-1].error is None
        assert text_of(outputs) == self.text
        assert_like(audio_of(outputs), self.audio)
        assert_freed(omni)
