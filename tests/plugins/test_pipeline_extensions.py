"""A third party's stages in the graph of a published family: behind its vocoder, and on its thinker's hidden states."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch

from omni import ConfigError, Omni, PluginError, Result
from omni.payload import HiddenStates
from omni.pipeline import Pipeline
from omni.plugin.manager import Plugins
from tests.support.engines import plugins_of
from tests.support.extensions import LAYER, Mood, classify
from tests.support.reference import tiny_checkpoint
from tests.support.tiny_omni import SHAPE, assert_freed, assert_like, lengths, picture, sound, user

pytestmark = pytest.mark.thorough

CHAT = user(picture(1), sound(1), "what do you see")
LENGTHS = lengths(12, 20)


@cache
def plugins() -> Plugins:
    return plugins_of(stranger="tests.support.extensions")


@cache
def folder() -> Path:
    return tiny_checkpoint(3, **SHAPE)


def opened(extensions: tuple[str, ...] = (), **overrides: object) -> Omni:
    given = {"engine.process": "thread", **{name.replace("__", "."): value for name, value in overrides.items()}}
    return Omni(folder(), device="cpu", plugins=plugins(), overrides=given, extensions=extensions)


@pytest.fixture(scope="module")
def plain() -> Result:
    with opened() as omni:
        return omni.generate(CHAT, sampling=LENGTHS, stream=False)


WHERE = {
    "a thread": ({"engine.process": "thread"}, {}),
    "a process": ({"engine.process": "process"}, {}),
    "processes": ({}, {"quiet": "cpu/2", "mood": "cpu/2"}),
}


@pytest.fixture(scope="module", params=WHERE)
def omni(request: pytest.FixtureRequest) -> Iterator[Omni]:
    overrides: Mapping[str, object]
    place: Mapping[str, str]
    overrides, place = WHERE[request.param]
    extensions = ("quiet", "mood")
    with Omni(
        folder(), device="cpu", plugins=plugins(), overrides=overrides, place=place, extensions=extensions
    ) as omni:
        yield omni
        assert_freed(omni)


def test_a_stage_behind_the_vocoder_and_one_beside_it(omni: Omni, plain: Result) -> None:
    assert omni.modalities == ("text", "audio", "mood")
    result = omni.generate(CHAT, sampling=LENGTHS, stream=False)
    assert (result.text, result.tokens) == (plain.text, plain.tokens)
    assert plain.audio is not None
    assert_like(result.audio, plain.audio * 0.5)
    (given,) = result.outputs["mood"]
    assert isinstance(given.meta, Mood)
    states = omni.hidden_states(CHAT, sampling=LENGTHS)
    assert given.meta.positions == states.prompt_tokens + 11
    scores = classify(states.states[0], 3)
    assert given.meta.scores == pytest.approx(scores.tolist(), rel=1e-4)
    assert given.meta.label == ("calm", "glad", "sad")[int(scores.argmax())]


def test_hidden_states_are_an_output_like_any_other(omni: Omni) -> None:
    asked = ("thinker.hidden_states",)
    result = omni.generate(CHAT, modalities=asked, sampling=LENGTHS, stream=False)
    assert (result.text, result.audio, set(result.outputs)) == ("", None, set(asked))
    (payload,) = result.outputs["thinker.hidden_states"]
    assert isinstance(payload.meta, HiddenStates)
    hidden = payload.tensors["hidden"]
    assert isinstance(hidden, torch.Tensor)
    assert payload.meta.layers == (LAYER,)
    assert hidden.shape[0] == payload.meta.prompt_tokens + 11
    assert set(result.usage.tokens) == {"thinker"}


def test_streams_give_structs_codes_and_token_ids(omni: Omni, plain: Result) -> None:
    asked = ("text", "audio", "codes", "mood")
    outputs = list(omni.generate(CHAT, modalities=asked, sampling=LENGTHS))
    assert tuple(token for output in outputs for token in output.tokens) == plain.tokens
    (found,) = (payload for output in outputs for payload in output.outputs.get("mood", ()))
    assert isinstance(found.meta, Mood)
    codes = torch.cat([output.codes for output in outputs if output.codes is not None])
    whole = omni.generate(CHAT, modalities=asked, sampling=LENGTHS, stream=False)
    assert codes.shape == (20, 4)
    assert codes.dtype == torch.int64
    assert whole.codes is not None
    assert torch.equal(whole.codes, codes)
    assert len({tuple(frame) for frame in codes.tolist()}) > 1
    assert whole.audio is not None
    assert plain.audio is not None
    assert_like(whole.audio, plain.audio * 0.5)


def test_settings_reach_stages_of_an_extension(plain: Result) -> None:
    with opened(("quiet",), quiet__volume=0.25) as omni:
        result = omni.generate(CHAT, sampling=LENGTHS, stream=False)
    assert plain.audio is not None
    assert_like(result.audio, plain.audio * 0.25)


def test_a_function_of_the_user_is_applied_last(plain: Result) -> None:
    def without_speech(pipeline: Pipeline) -> Pipeline:
        assert pipeline.stage("quiet")
        kept = ("thinker", "audio_encoder", "vision_encoder")
        return pipeline.__class__(
            family=pipeline.family,
            stages=tuple(stage for stage in pipeline.stages if stage.name in kept),
            edges=tuple(edge for edge in pipeline.edges if edge.consumer in kept),
            outputs=tuple(output for output in pipeline.outputs if output.stage in kept),
            frontend=pipeline.frontend,
        )

    with Omni(folder(), device="cpu", plugins=plugins(), extensions=["quiet"], pipeline=without_speech) as omni:
        assert omni.modalities == ("text",)
        assert omni.generate(CHAT, sampling={"thinker": LENGTHS["thinker"]}, stream=False).text == plain.text


@pytest.mark.parametrize(
    ("extensions", "wrap", "error", "words"),
    [
        (["missing"], None, PluginError, r"there is no pipeline extension 'missing': known are broken, mood, quiet"),
        (
            ["broken"],
            None,
            PluginError,
            r"pipeline extension 'broken' of plugin 'stranger' failed for family 'qwen3_omni': KeyError: "
            r"'nobody->thinker' \(tests\.support\.extensions:broken\)",
        ),
        ("mood", None, ConfigError, r"extensions: 'mood' is a string; give a list: \['mood'\]"),
        ([], lambda pipeline: None, ConfigError, "pipeline: the function failed: TypeError: it returned a NoneType"),
        ([], lambda pipeline: 1 / 0, ConfigError, "pipeline: the function failed: ZeroDivisionError"),
    ],
)
def test_a_wrong_choice_is_named(extensions, wrap, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Omni(folder(), device="cpu", plugins=plugins(), extensions=extensions, pipeline=wrap)
