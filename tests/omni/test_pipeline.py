"""Valid and invalid pipelines, and the part of one that a request uses."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.engine import check_pipeline
from omni.errors import ConfigError, PluginError
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage, validate
from omni.plugin.manager import load_plugins
from omni_ar.options import ArOptions
from tests.support.entry_points import own_entry_points
from tests.support.fake_graph import Note

OMNI = [("audio", "thinker"), ("vision", "thinker"), ("thinker", "talker"), ("talker", "voice")]
TEXT_AND_AUDIO = {"text": "thinker", "audio": "voice"}


def graph(stages: Sequence[str], edges: Sequence[tuple[str, str]], outputs: dict[str, str]) -> Pipeline:
    return Pipeline(
        family="test",
        stages=tuple(
            Stage(name=name, kind="ar", model="omni_text.model:build", options=ArOptions()) for name in stages
        ),
        edges=tuple(Edge(producer=producer, consumer=consumer) for producer, consumer in edges),
        outputs=tuple(PipelineOutput(modality=modality, stage=stage) for modality, stage in outputs.items()),
        frontend="test:frontend",
    )


def omni() -> Pipeline:
    return graph(["voice", "talker", "thinker", "vision", "audio"], OMNI, TEXT_AND_AUDIO)


@given(st.data())
def test_order_holds_for_any_graph_whose_edges_go_forward(data: st.DataObject):
    names = data.draw(st.permutations("abcdef"))
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    order = [stage.name for stage in graph("abcdef", edges, {"text": "a"}).order()]
    assert all(order.index(a) < order.index(b) for a, b in edges)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            graph(["a", "b", "c", "d"], [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")], {"text": "d"}),
            "pipeline.edges: form a cycle among b, c, d",
        ),
        (graph(["a"], [("a", "a")], {"text": "a"}), "pipeline.edges: form a cycle among a"),
        (graph(["a"], [("a", "b")], {"text": "a"}), "pipeline.edges[0].consumer: 'b' is not a stage; use one of a"),
        (graph(["a"], [("b", "a")], {"text": "a"}), "pipeline.edges[0].producer: 'b' is not a stage; use one of a"),
        (graph(["a", "b", "a"], [], {"text": "a"}), "pipeline.stages: 'a' appears 2 times"),
        (graph(["a", "b"], [("a", "b")] * 2, {"text": "b"}), "pipeline.edges: 'a->b' appears 2 times"),
        (graph(["a"], [], {}), "pipeline.outputs: is empty; name a stage and the modality it gives"),
        (graph(["a"], [], {"text": "b"}), "pipeline.outputs[0].stage: 'b' is not a stage"),
        (graph([], [], {"text": "a"}), "pipeline.stages: is empty"),
        (graph(["a", "b"], [("a", "b")], {"text": "a"}), "pipeline.stages.b: leads to no output"),
        (graph(["frontend"], [], {"text": "frontend"}), "'frontend' is not a valid name of a stage"),
        (graph(["engine"], [], {"text": "engine"}), "'engine' is not a valid name of a stage"),
        (graph(["edges"], [], {"text": "edges"}), "'edges' is not a valid name of a stage"),
        (graph(["a.b"], [], {"text": "a.b"}), "'a.b' is not a valid name of a stage"),
    ],
)
def test_an_invalid_graph_names_its_problem(pipeline: Pipeline, message: str):
    with pytest.raises(ConfigError) as caught:
        validate(pipeline)
    assert message in str(caught.value)


def test_two_outputs_of_one_modality_are_refused():
    pipeline = graph(["a"], [], {"text": "a"})
    doubled = msgspec.structs.replace(pipeline, outputs=pipeline.outputs * 2)
    with pytest.raises(ConfigError, match=r"pipeline.outputs: 'text' appears 2 times"):
        validate(doubled)


@given(st.data())
def test_active_stages_lie_between_the_inputs_and_the_wanted_outputs(data: st.DataObject):
    names = "abcdef"
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    fed, wanted = (data.draw(st.sets(st.sampled_from(names))) for _ in range(2))
    outputs = {f"to {name}": name for name in names}

    def paths(at: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [at] + [path for a, b in edges if a == at[-1] for path in paths((*at, b))]

    walked = [path for name in fed for path in paths((name,)) if path[-1] in wanted]
    on_a_path = {name for path in walked for name in path}
    asked = [*(f"to {name}" for name in wanted), "a modality that no stage gives"]
    assert graph(names, edges, outputs).active(asked, fed) == on_a_path


def test_a_stage_is_found_by_name():
    assert omni().stage("talker").name == "talker"
    with pytest.raises(KeyError):
        omni().stage("narrator")


def check(**changes: object) -> None:
    """Checks a graph of one stage against the registered plugins, with changes to the stage."""
    pipeline = graph(["a"], [], {"text": "a"})
    stage = msgspec.structs.replace(pipeline.stages[0], **changes)
    check_pipeline(msgspec.structs.replace(pipeline, stages=(stage,)), load_plugins(own_entry_points("ar", "local")))


def test_options_of_the_wrong_kind_are_refused():
    with pytest.raises(ConfigError) as caught:
        check(options=Note(number=1))
    assert str(caught.value) == "pipeline.stages.a.options: is a Note; kind 'ar' takes ArOptions"


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("omni_text.model", ConfigError, r'is not an import path; write "module:attribute"'),
        ("omni_text.model:", ConfigError, "is not an import path"),
        (":build", ConfigError, "is not an import path"),
        ("omni_text.model:biuld", ConfigError, "omni_text.model has no 'biuld'"),
        ("omni_text.modle:build", PluginError, "importing omni_text.modle failed: ModuleNotFoundError"),
    ],
)
def test_a_bad_import_path_is_found_before_anything_is_built(path: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message) as caught:
        check(model=path)
    assert "pipeline.stages.a.model" in str(caught.value)


def test_an_adapter_that_is_not_there_is_named():
    pipeline = graph(["a", "b"], [], {"text": "b"})
    edge = Edge(producer="a", consumer="b", adapter="omni.pipeline.adapter:PassThru")
    with pytest.raises(ConfigError, match=r"pipeline.edges.a->b.adapter: omni.pipeline.adapter has no 'PassThru'"):
        check_pipeline(msgspec.structs.replace(pipeline, edges=(edge,)), load_plugins(own_entry_points("ar")))


@pytest.mark.parametrize("struct", [Stage, Edge, PipelineOutput, Pipeline])
def test_config_is_frozen_and_refuses_unknown_fields(struct: type[msgspec.Struct]):
    assert struct.__struct_config__.frozen
    assert struct.__struct_config__.forbid_unknown_fields


def test_a_front_end_prepares_speech_when_only_codes_are_requested() -> None:
    pipeline = graph(
        ["thinker", "talker", "voice"], [("thinker", "talker"), ("talker", "voice")], TEXT_AND_AUDIO
    ).extended(
        outputs=[
            PipelineOutput(modality="codes", stage="talker", default=False),
            PipelineOutput(modality="states", stage="thinker", default=False),
        ]
    )
    assert pipeline.default_modalities == ("text", "audio")
    for asked, prepared in (
        (["text"], {"text"}),
        (["states"], {"states"}),
        (["codes"], {"codes", "audio"}),
        (["codes", "text"], {"codes", "text", "audio"}),
        (["audio"], {"audio"}),
    ):
        assert pipeline.prepared(asked) == prepared


def test_a_front_end_prepares_speech_for_an_output_behind_it() -> None:
    pipeline = (
        graph(["thinker", "talker", "voice"], [("thinker", "talker"), ("talker", "voice")], TEXT_AND_AUDIO)
        .extended(outputs=[PipelineOutput(modality="codes", stage="talker", default=False)])
        .extended(
            stages=graph(["meter"], [], TEXT_AND_AUDIO).stages,
            edges=[Edge(producer="voice", consumer="meter")],
            outputs=[PipelineOutput(modality="level", stage="meter")],
        )
    )
    assert pipeline.default_modalities == ("text", "audio", "level")
    for asked, prepared in (
        (["level"], {"level", "audio"}),
        (["codes"], {"codes", "audio"}),
        (["text"], {"text"}),
        (["audio"], {"audio"}),
    ):
        assert pipeline.prepared(asked) == prepared
