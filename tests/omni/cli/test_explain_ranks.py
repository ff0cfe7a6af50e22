"""`omni explain` of a stage that is cut across engines."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni.cli import app
from tests.support.entry_points import own_entry_points
from tests.support.ranked_family import ranked_model
from tests.support.ranked_plugin import POINT
from tests.support.tiny_text import write_text_model

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("installed")]
CUT = ("--set", "writer.tensor_parallel=2", "--place", "singer=cuda:1")


@pytest.fixture
def points() -> list[EntryPoint]:
    return [POINT, *own_entry_points()]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return ranked_model(tmp_path)


def explain(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", str(model), "--device", "cuda:0", *arguments])


def test_explain_shows_the_ranks_of_a_stage_and_their_processes(model: Path) -> None:
    places = [*CUT, "--place", "writer=cuda:0,cuda:1/b"]
    text = explain(model, *places).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "PLACE DEVICE STAGES" in lines
    assert "cuda:0 cuda:0 rank 0 of 2 of writer" in lines
    assert "cuda:1/b cuda:1 rank 1 of 2 of writer" in lines
    assert "cuda:1 cuda:1 singer" in lines
    assert "cuda:0, rank 0" in text
    assert "cuda:1/b, rank 1" in text
    found = json.loads(explain(model, *places, "--json").stdout)
    writer, singer = found["stages"]
    assert (writer["places"], writer["tensor_parallel"]) == (["cuda:0", "cuda:1/b"], 2)
    assert (singer["places"], singer["tensor_parallel"]) == (["cuda:1"], 1)
    assert [(edge["producer_place"], edge["consumer_place"]) for edge in found["edges"]] == [("cuda:0", "cuda:1")]
    assert {place: set(memory["stages"]) for place, memory in found["memory"].items()} == {
        "cuda:0": {"writer"},
        "cuda:1/b": {"writer"},
        "cuda:1": {"singer"},
    }


def test_explain_shows_that_experts_are_divided(model: Path) -> None:
    arguments = [*CUT, "--place", "writer=cuda:0,cuda:1/b", "--set", "writer.expert_parallel=true"]
    lines = [" ".join(line.split()) for line in explain(model, *arguments).stdout.splitlines()]
    assert "cuda:0 cuda:0 rank 0 of 2 of writer (experts divided)" in lines
    assert "cuda:1/b cuda:1 rank 1 of 2 of writer (experts divided)" in lines
    writer, singer = json.loads(explain(model, *arguments, "--json").stdout)["stages"]
    assert (writer["expert_parallel"], singer["expert_parallel"]) == (True, False)


def test_explain_shows_the_layer_range_and_memory_of_each_rank(tmp_path: Path) -> None:
    model = write_text_model(tmp_path, "untied")
    cut = ("--set", "text.pipeline_parallel=2", "--set", "text.pipeline_layers=[1,2]", "--place", "text=cuda:0,cuda:1")
    lines = [" ".join(line.split()) for line in explain(tmp_path, *cut).stdout.splitlines()]
    assert "cuda:0 cuda:0 rank 0 of 2 of text (layer range 2 of 2)" in lines
    assert "cuda:1 cuda:1 rank 1 of 2 of text (layer range 1 of 2)" in lines
    found = json.loads(explain(tmp_path, *cut, "--json").stdout)
    assert found["stages"][0]["pipeline_parallel"] == 2
    weights = {name: parameter.nbytes // 2 for name, parameter in model.named_parameters()}  # bfloat16
    layers = [sum(size for name, size in weights.items() if f"layers.{layer}." in name) for layer in range(3)]
    table, head, norm = (weights[name] for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"))
    shares = {place: memory["stages"]["text"] for place, memory in found["memory"].items()}
    assert shares["cuda:0"]["weights"] == table + layers[1] + layers[2] + norm + head
    assert shares["cuda:1"]["weights"] == table + layers[0]
    assert shares["cuda:0"]["page_bytes"] == 2 * shares["cuda:1"]["page_bytes"]


def test_explain_shows_that_a_stage_is_replicated_and_why(tiny_model: Path) -> None:
    arguments = [
        *("--set", "audio_encoder.tensor_parallel=2", "--place", "audio_encoder=cuda:0,cuda:1"),
        *("--set", "code2wav.tensor_parallel=2", "--place", "code2wav=cuda:2,cuda:3"),
    ]
    lines = [" ".join(line.split()) for line in explain(tiny_model, *arguments).stdout.splitlines()]
    why = "is not cut by tensors: 2 replicas of the whole model instead of tensor_parallel=2"
    assert f"audio_encoder: kind 'encoder' {why}" in lines
    assert f"code2wav: kind 'vocoder' {why}" in lines
    assert "cuda:1 cuda:1 audio_encoder" in lines
    found = json.loads(explain(tiny_model, *arguments, "--json").stdout)
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert {name: stage["replicated"] for name, stage in stages.items() if stage["replicated"] is not None} == {
        "audio_encoder": f"kind 'encoder' {why}",
        "code2wav": f"kind 'vocoder' {why}",
    }
    assert (stages["code2wav"]["places"], stages["code2wav"]["tensor_parallel"]) == (["cuda:2", "cuda:3"], 1)
    weights = {
        name: [m["stages"][name]["weights"] for m in found["memory"].values() if name in m["stages"]]
        for name in ("audio_encoder", "code2wav")
    }
    assert all(len(each) == 2 and each[0] == each[1] > 0 for each in weights.values())
    edges = {
        (e["producer_place"], e["consumer_place"], e["connector"])
        for e in found["edges"]
        if e["consumer"] == "code2wav"
    }
    assert edges == {("cuda:0", "cuda:2", "cuda_ipc"), ("cuda:0", "cuda:3", "cuda_ipc")}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (CUT, "writer.place: cuda:0 is 1 place"),
        ((*CUT, "--place", "writer=cuda:0,cuda:1,cuda:2,cuda:3"), "replicas of a stage that is cut"),
        (("--set", "singer.tensor_parallel=2"), "singer.place: engine.device is 1 place"),
        (("--set", "singer.pipeline_parallel=2"), "stages of kind 'tone' are not cut by layers"),
        (("--set", "writer.tensor_parallel=65"), "give a number from 1 to 64"),
        (("--set", "writer.expert_parallel=true"), "writer.tensor_parallel is 1"),
        (("--set", "singer.expert_parallel=true"), "stages of kind 'tone' have no experts"),
        ((*CUT, "--place", "writer=cuda:0,cuda:1", "--set", "engine.process=thread"), "engine.process"),
    ],
)
def test_explain_refuses_a_stage_that_cannot_be_cut(model: Path, arguments: tuple[str, ...], text: str) -> None:
    result = explain(model, *arguments)
    assert result.exit_code != 0
    assert text in result.output
