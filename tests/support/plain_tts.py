"""The family of tests/examples/plain_tts, found as a stranger's plugin is, and what tests ask of it."""

from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from omni.frontend.base import Chat, Message, TextPart
from omni.plugin import locate
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import SamplingParams
from support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from support.omni_engine import Result
from support.plain_speech import Speech

HOME = REPOSITORY / "tests" / "examples" / "plain_tts"
TEXTS = ("The quick brown fox", "a", "so it is, two three four", "grüße 你好", "blue, red or green? " * 3, "who", "ü")
MOST = 30
"""Tokens of a request."""
TOLERANCE = 1e-4
"""Of the waveform's peak."""


@cache
def plugins() -> Plugins:
    """omni's stage kinds, the family as its pyproject names it, and a tap for codes."""
    tap = EntryPoint("tap", "support.tap", "omni")
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
    """A request, greedy unless told otherwise."""
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
