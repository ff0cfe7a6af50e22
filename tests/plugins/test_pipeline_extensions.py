"""The tutorial's stages in the graph of a published family: behind its vocoder, and on its thinker's hidden states."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from omni import ConfigError, Omni, PluginError, Result, StageError
from omni.cli import app
from omni.payload import RequestHiddenStates
from omni.pipeline import Pipeline, Stage
from omni.plugin.manager import Plugins
from omni_ar.inputs import TokenCodes
from omni_ar.run.output_processor import OutputProcessor
from omni_moods.extension import LAYER
from omni_moods.mood import Mood, classify
from tests.support.echo_family import echo_model
from tests.support.entry_points import REPOSITORY, entry_points_of, own_entry_points
from tests.support.plugins import plugins_of
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import SLOW, chosen, few
from tests.support.tiny_omni import SHAPE, assert_freed, assert_like, lengths, picture, sound, user

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forked_processes")]

HOME = REPOSITORY / "examples" / "extension"
CHAT = user(picture(1), sound(1), "what do you see")
LENGTHS = lengths(12, 20)


@cache
def plugins() -> Plugins:
    return plugins_of(moods="omni_moods.plugin", broken="tests.plugins.broken_extension")


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


@pytest.fixture(scope="module", params=chosen(["a thread", "processes"], WHERE))
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
    scores = classify(states.states[0].numpy(), 3)
    assert given.meta.scores == pytest.approx(scores.tolist(), rel=1e-4)
    assert given.meta.label == ("calm", "glad", "sad")[int(scores.argmax())]


def test_hidden_states_are_an_output_like_any_other(omni: Omni) -> None:
    asked = ("thinker.hidden_states",)
    result = omni.generate(CHAT, modalities=asked, sampling=LENGTHS, stream=False)
    assert (result.text, result.audio, set(result.outputs)) == ("", None, set(asked))
    (payload,) = result.outputs["thinker.hidden_states"]
    assert isinstance(payload.meta, RequestHiddenStates)
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


def test_the_tutorials_show_the_plugin_as_it_is() -> None:
    shown: dict[str, str] = {}
    for page in ("stage.md", "extension.md"):
        text = (REPOSITORY / "docs" / "tutorials" / page).read_text()
        listings = re.findall(r"^`([\w/.]+)`: [^\n]*\n\n```(?:python|toml)\n(.*?)```", text, re.DOTALL | re.MULTILINE)
        assert len(listings) == len(re.findall(r"^```(?:python|toml)$", text, re.MULTILINE)), "each names its file"
        shown |= dict(listings)
    modules = {path.relative_to(HOME).as_posix() for path in (HOME / "omni_moods").glob("[a-z]*.py")}
    assert shown.keys() == {*modules, "pyproject.toml", "test_moods.py"}
    for name, code in shown.items():
        whole = (HOME / name).read_text()
        assert code == whole if name in modules else code in whole, f"{name} differs"


def test_explain_shows_the_extended_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*entry_points_of(HOME / "pyproject.toml"), *own_entry_points()]
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)
    arguments = [
        "explain",
        str(folder()),
        "--device",
        "cpu",
        "--with",
        "quiet",
        "--with",
        "mood",
        "--family",
        "qwen3_omni",
    ]
    text = CliRunner().invoke(app, [*arguments, "--place", "mood=cpu/2"])
    assert text.exit_code == 0, text.output
    lines = [" ".join(line.split()) for line in text.stdout.splitlines()]
    assert "family qwen3_omni with quiet, mood, on cpu" in lines[0]
    for line in (
        "audio quiet by default",
        "mood mood by default",
        "thinker.hidden_states thinker on request",
        "mood mood 0 float32 -",
        "thinker -> mood shm host two processes on cpu",
        "thinker.hidden_layers [2] family",
    ):
        assert line in lines
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert report["extensions"] == ["quiet", "mood"]
    assert [stage["model"] for stage in report["stages"] if stage["name"] == "quiet"] == [None]


def test_run_takes_an_extension_and_shows_its_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points = [*entry_points_of(HOME / "pyproject.toml"), *own_entry_points()]
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)
    modalities = ("--modalities", "text,mood,thinker.hidden_states", "--max-tokens", "4", "--seed", "1")
    ran = CliRunner().invoke(app, ["run", str(folder()), "hello", "--device", "cpu", "--with", "mood", *modalities])
    assert ran.exit_code == 0, ran.output
    assert re.search(r"^mood: Mood\(label='(calm|glad|sad)', scores=", ran.stderr, re.MULTILINE)
    assert re.search(
        r"^thinker.hidden_states: RequestHiddenStates\(.*\), hidden \[\d+, \d+\]$", ran.stderr, re.MULTILINE
    )


def test_an_extension_of_other_families_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'mood' does not extend family 'echo'; it extends qwen3_omni, qwen2_5_omni"):
        Omni(
            echo_model(tmp_path),
            device="cpu",
            plugins=plugins_of(moods="omni_moods.plugin", echo="tests.support.echo_plugin"),
            extensions=["mood"],
        )


def test_an_extension_that_is_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*entry_points_of(HOME / "pyproject.toml"), *own_entry_points()]
    monkeypatch.setattr("omni.plugin.manager.entry_points", lambda group: points)
    extensions = ("--with", "mood", "--with", "quiet", "--with", "mood")
    refused = CliRunner().invoke(app, ["explain", str(folder()), "--device", "cpu", *extensions])
    assert refused.exit_code != 0
    assert "extensions: 'mood' is named twice; name each extension once" in " ".join(refused.output.split())


def test_an_edge_of_hidden_states_that_are_not_kept_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"thinker\.hidden_layers: is empty, and edge thinker->mood takes hidden states"
    ):
        opened(("mood",), thinker__hidden_layers=())


@pytest.mark.parametrize("process", few(1, ["thread", "process"], SLOW))
def test_layers_that_an_extension_chose_name_it(process: str) -> None:
    """Not if the user chose them, or if another extension may have."""
    problem = r"^thinker\.hidden_layers: \[99\] are not distinct layers of this model"
    with pytest.raises(ConfigError, match=rf"{problem} \(.*broken_extension\.py:\d+\); use"):
        opened(("deep",), engine__process=process)
    for extensions, settings in ((("quiet",), {"thinker__hidden_layers": (99,)}), (("deep", "quiet"), {})):
        with pytest.raises(ConfigError, match=rf"{problem}; use"):
            opened(extensions, engine__process=process, **settings)


def test_a_stage_that_needs_a_model_says_so() -> None:
    def without_model(pipeline: Pipeline) -> Pipeline:
        return pipeline.extended(stages=[msgspec.structs.replace(pipeline.stage("talker"), model=None)])

    words = (
        r"pipeline\.stages\.talker\.model: is missing \(.*test_pipeline_extensions.py:\d+\); "
        "kind 'ar' takes a function that returns a ArModel"
    )
    with pytest.raises(ConfigError, match=words):
        Omni(folder(), device="cpu", plugins=plugins(), pipeline=without_model)


def test_tensors_for_users_that_no_output_takes_fail_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    real = OutputProcessor._page_slice

    def for_users(self, table, meta, *given):
        produced = real(self, table, meta, *given)
        if isinstance(meta, TokenCodes):
            self._outbox.append(replace(produced, for_user=True))
        return produced

    monkeypatch.setattr(OutputProcessor, "_page_slice", for_users)
    with opened() as omni:
        codes = omni.generate(CHAT, modalities=("codes",), voice="chelsie", sampling=LENGTHS, stream=False).codes
        assert codes is not None
        assert codes.shape == (40, 4), "each frame twice"
        with pytest.raises(
            StageError, match=r"'talker' .* a TokenCodes has tensors, and no output .* set PipelineOutput\.adapter"
        ):
            omni.generate(CHAT, sampling=LENGTHS, stream=False)


def test_tensors_of_outputs_are_the_user_s_own(omni: Omni) -> None:
    """More of them than an engine has slots for."""
    asked = {**LENGTHS, "talker": lengths(12, 90)["talker"]}
    given, copies = [], []
    for output in omni.generate(CHAT, modalities=("codes",), sampling=asked):
        if output.codes is not None:
            given.append(output.codes)
            copies.append(output.codes.clone())
    assert len(given) == 90
    assert torch.equal(torch.cat(given), torch.cat(copies))
    again = omni.generate(CHAT, modalities=("codes",), sampling=asked, stream=False)
    assert again.codes is not None
    assert torch.equal(again.codes, torch.cat(given))
    assert (again.text, again.audio) == ("", None)
    assert "code2wav" not in again.finish_reasons


@pytest.mark.parametrize(
    ("extensions", "wrap", "error", "words"),
    [
        (
            ["missing"],
            None,
            PluginError,
            r"there is no pipeline extension 'missing': known are broken, deep, mood, quiet, renaming",
        ),
        (
            ["broken"],
            None,
            PluginError,
            r"pipeline extension 'broken' of plugin 'broken' failed for family 'qwen3_omni': "
            r"UnknownPartError: pipeline.edges: there is no edge 'nobody->thinker'; "
            r".* \(.*broken_extension\.py:\d+\); tests\.plugins\.broken_extension:broken; report it",
        ),
        (
            ["renaming"],
            None,
            PluginError,
            r"pipeline extension 'renaming' of plugin 'broken' failed for family 'qwen3_omni': "
            r"pipeline\.family is 'qwen2_5_omni' now, not 'qwen3_omni': leave the family as it is "
            r"\(.*broken_extension\.py:\d+\); tests\.plugins\.broken_extension:renaming; report it",
        ),
        ("mood", None, ConfigError, r"extensions: 'mood' is a string; give a list: \['mood'\]"),
        ([], lambda pipeline: None, ConfigError, "pipeline: the function failed: it returned None, not a Pipeline"),
        ([], lambda pipeline: 1 / 0, ConfigError, "pipeline: the function failed: ZeroDivisionError"),
        ([], "json:loads", ConfigError, "pipeline: 'json:loads' is a str; give a function that takes a Pipeline"),
        (5, None, ConfigError, r"extensions: 5 is not a list of names; give a list: "),
        ([5], None, ConfigError, r"extensions: \[5\] is not a list of names"),
        (
            [],
            lambda pipeline: pipeline.edge("thinker", "talkr"),
            ConfigError,
            r"pipeline\.edges: there is no edge 'thinker->talkr' \(.*test_pipeline_extensions\.py:\d+\); "
            r"did you mean 'thinker->talker'\?",
        ),
        (
            [],
            lambda pipeline: pipeline.stage("x"),
            ConfigError,
            r"pipeline\.stages: there is no stage 'x' \(.*\); use one of .*thinker, talker, code2wav",
        ),
        (
            [],
            lambda pipeline: pipeline.extended(outputs="abc"),
            ConfigError,
            r"pipeline\.outputs: is a str, 'abc' \(.*test_pipeline_extensions.py:\d+\); give a list of PipelineOutput",
        ),
        (
            [],
            lambda pipeline: pipeline.extended(edges=[Stage]),
            ConfigError,
            r"pipeline\.edges: has a StructMeta, .* \(.*\); give a list of Edge",
        ),
        (
            [],
            lambda pipeline: pipeline.extended(
                edges=[msgspec.structs.replace(pipeline.edge("thinker", "talker"), adapter="json:__name__")]
            ),
            ConfigError,
            r"pipeline\.edges\.thinker->talker\.adapter: json:__name__ is a str; name a class or a function",
        ),
    ],
)
def test_a_wrong_choice_is_named(extensions, wrap, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Omni(folder(), device="cpu", plugins=plugins(), extensions=extensions, pipeline=wrap)
