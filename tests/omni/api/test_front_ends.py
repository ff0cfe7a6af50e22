"""Properties of a family's front end, and their effect on its requests."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omni import Omni
from omni.checkpoint import Checkpoint
from omni.errors import ConfigError, InputError
from omni.frontend.base import Chat, Frontend, Prepared, TextDecoder
from tests.support.echo_family import EchoFrontend
from tests.support.echo_omni import opened


class NoBase:
    """Has the methods, and not the defaults of those that it lacks."""

    def __init__(self, checkpoint: Checkpoint) -> None: ...

    def prepare(self, chat: Chat) -> Prepared:
        raise NotImplementedError


class Mute(EchoFrontend):
    def text_decoder(self) -> TextDecoder | None:
        return None


class Fine(EchoFrontend):
    """Takes sound at another rate, and names, which it writes before the text."""

    sample_rate = 24000
    takes_names = True

    def prepare(self, chat: Chat) -> Prepared:
        GIVEN.append(chat)
        return super().prepare(chat)


GIVEN: list[Chat] = []


def _with(frontend: type, model: Path, monkeypatch: pytest.MonkeyPatch) -> Omni:
    monkeypatch.setattr("tests.support.echo_family.EchoFrontend", frontend)
    return opened(model)


@pytest.mark.parametrize(
    ("frontend", "words"),
    [
        (
            NoBase,
            r"pipeline.frontend: gave a NoBase \(.*test_front_ends.py:\d+\); derive it from omni.frontend.base.Frontend",
        ),
        (Mute, "pipeline.frontend: has no text decoder, but stage 'writer' writes text"),
    ],
)
def test_a_front_end_that_lacks_something_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, frontend: type, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        _with(frontend, model, monkeypatch)


def test_defaults_are_those_of_a_model_that_only_reads_text() -> None:
    class Least(Frontend):
        def prepare(self, chat: Chat) -> Prepared:
            return Prepared({})

    least = Least()
    assert (least.voices, least.sample_rate, least.takes_names) == ((), 16000, False)
    assert (least.text_decoder(), least.vocabulary()) == (None, None)


@pytest.fixture
def fine(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Omni]:
    with _with(Fine, model, monkeypatch) as omni:
        yield omni


def test_sound_comes_at_the_rate_that_is_wanted(fine: Omni) -> None:
    silence = np.zeros(4800, np.float32)
    clips = [silence, (silence, 48000), (silence, 8000)]
    parts = [{"type": "input_audio", "input_audio": clip} for clip in clips]
    result = fine.generate([{"role": "user", "content": parts}], modalities=("text",), stream=False)
    assert result.text == "<4800 samples>|<2400 samples>|<14400 samples>"


def test_names_reach_the_family(fine: Omni) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "name": "ann", "content": "a"}]
    messages += [{"role": "assistant", "name": None, "content": "b"}, {"role": "user", "content": "c"}]
    assert fine.generate(messages, stream=False).text == "a|b|c"
    assert [message.name for message in GIVEN[-1].messages] == ["ann", None, None]


@pytest.mark.parametrize(("name", "words"), [("", "is empty"), (3, "is a int"), ("\ud800", "not valid Unicode")])
def test_an_invalid_name_is_refused(fine: Omni, name: object, words: str) -> None:
    with pytest.raises(InputError, match=r"messages\[0\]\.name: .*" + words):
        fine.generate([{"role": "user", "name": name, "content": "a"}], stream=False)


def test_names_are_refused_where_they_mean_nothing(omni: Omni) -> None:
    with pytest.raises(
        InputError, match=r"messages\[0\]\.name: is given, but this model does not distinguish speakers"
    ):
        omni.generate([{"role": "user", "name": "ann", "content": "a"}], stream=False)
