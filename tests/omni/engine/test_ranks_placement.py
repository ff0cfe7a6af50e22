"""Where the ranks of a stage run that is cut across engines, and the settings that cannot work."""

from pathlib import Path

import msgspec
import pytest
import torch

from omni.api.settings import layers_of
from omni.checkpoint import Checkpoint
from omni.config import SettingsLayer
from omni.engine import Placement, resolve_pipeline
from omni.engine.options import EngineOptions
from omni.engine.placement import check_order, check_ranks
from omni.errors import ConfigError
from omni.parallel import RankLayout
from omni.pipeline import Pipeline, Stage
from omni.process.select import runs_in_process
from tests.support.echo_family import echo_model, echo_plugins
from tests.support.fake_graph import PIPELINE
from tests.support.ranked_family import AdderKind, ranked_model, ranked_plugins

TO_WRITER, TO_SPEAKER = PIPELINE.edges
ALL = frozenset({"seer", "writer", "speaker"})


def cut(**stages: tuple[str | None, int]) -> Pipeline:
    """Place and number of ranks of stages."""
    changed = tuple(
        msgspec.structs.replace(
            stage, place=stages.get(stage.name, (None, 1))[0], tensor_parallel=stages.get(stage.name, (None, 1))[1]
        )
        for stage in PIPELINE.stages
    )
    return msgspec.structs.replace(PIPELINE, stages=changed)


def test_requests_and_edges_of_a_cut_stage_are_at_rank_0() -> None:
    pipeline = cut(writer=("cuda:1,cuda:0", 2), speaker=("cuda:0,cuda:2", 1))
    found = Placement.of(pipeline, "cuda:0")
    assert found.stages == {"seer": ("cuda:0",), "writer": ("cuda:1",), "speaker": ("cuda:0", "cuda:2")}
    assert found.ranks == {"writer": ("cuda:1", "cuda:0")}
    assert found.places == ("cuda:0", "cuda:1", "cuda:2")
    assert found.on("cuda:0") == ALL
    assert found.on("cuda:1") == {"writer"}
    assert found.followed("cuda:0") == {"writer"}
    assert found.followed("cuda:1") == frozenset()
    assert (found.ranks_on("cuda:0"), found.ranks_on("cuda:1")) == ({"writer": 1}, {"writer": 0})
    assert found.layouts == {"writer": RankLayout(2, 1)}
    assert found.ranks_on("cuda:2") == {}
    assert found.pairs(TO_WRITER) == (("cuda:0", "cuda:1"),)
    assert found.pairs(TO_SPEAKER) == (("cuda:1", "cuda:0"), ("cuda:1", "cuda:2"))
    load = {"cuda:0": 5}
    assert found.place_request(pipeline, ALL, load) == {"seer": "cuda:0", "writer": "cuda:1", "speaker": "cuda:2"}


def test_parts_of_layers_and_of_their_sequence_multiply() -> None:
    places = ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    writer = msgspec.structs.replace(
        PIPELINE.stage("writer"), place=",".join(places), tensor_parallel=2, pipeline_parallel=2
    )
    stages = tuple(writer if stage.name == "writer" else stage for stage in PIPELINE.stages)
    found = Placement.of(msgspec.structs.replace(PIPELINE, stages=stages), "cuda:0")
    assert (found.ranks, found.layouts) == ({"writer": places}, {"writer": RankLayout(2, 2)})
    assert [RankLayout(2, 2).position(rank) for rank in range(4)] == [1, 1, 0, 0]


def test_errors_name_all_ranks_on_a_place() -> None:
    found = Placement.of(cut(writer=("cpu/2,cpu/5", 2), speaker=("cpu/2,cpu/4,cpu/5", 3)), "cpu")
    assert found.rank_names("cpu/5") == "rank 1 of 2 of stage 'writer' and rank 2 of 3 of stage 'speaker'"
    assert found.rank_names("cpu/4") == "rank 1 of 3 of stage 'speaker'"
    assert found.rank_names("cpu") == ""


def test_engines_with_ranks_of_one_stage_are_a_group_of_rank_0_first() -> None:
    found = Placement.of(cut(writer=("cpu/2,cpu", 2), speaker=("cpu/3", 1)), "cpu")
    assert found.groups == (("cpu/2", "cpu"), ("cpu/3",))
    several = Placement.of(cut(writer=("cpu/2,cpu/5", 2), speaker=("cpu/2,cpu/4,cpu/3", 3)), "cpu")
    assert several.groups == (("cpu",), ("cpu/2", "cpu/5", "cpu/4", "cpu/3"))
    whole = Placement.of(cut(writer=("cpu/2,cpu/3", 1)), "cpu")
    assert whole.groups == (("cpu",), ("cpu/2",), ("cpu/3",))


def writer(tensor: int, pipeline: int = 1) -> Stage:
    return msgspec.structs.replace(PIPELINE.stage("writer"), tensor_parallel=tensor, pipeline_parallel=pipeline)


@pytest.mark.parametrize(
    ("places", "ranks", "text"),
    [
        (
            ["cuda:0"],
            2,
            'writer.place: cuda:0 is 1 place, and writer.tensor_parallel=2 takes 2 places, .*"cuda:0,cuda:1"',
        ),
        (["cuda:0", "cuda:1", "cuda:2"], 2, "are 3 places, and writer.tensor_parallel=2 takes 2"),
        (["cuda:0"], 8, "cuda:3,..."),
        ([f"cuda:{index}" for index in range(4)], 2, "replicas of a stage that is cut are not supported yet"),
        (["cpu", "cuda:1"], 2, "different kinds of devices"),
        (["cuda:0", "cuda:0/b"], 2, "several ranks on cuda:0; name a GPU for each rank"),
    ],
)
def test_places_that_cannot_be_those_of_ranks(places: list[str], ranks: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_ranks(writer(ranks), places)


def test_ranks_of_one_processor_and_of_several_gpus_are_allowed() -> None:
    check_ranks(writer(2), ["cpu", "cpu/2"])
    check_ranks(writer(2), ["cuda:0", "cuda:1"])
    check_ranks(writer(1, 2), ["cuda:0", "cuda:1"])


def test_too_few_places_for_the_ranks_name_both_numbers() -> None:
    wanted = "writer.tensor_parallel=2 and writer.pipeline_parallel=3 takes 6 places"
    with pytest.raises(ConfigError, match=wanted):
        check_ranks(writer(2, 3), ["cuda:0", "cuda:1"])


@pytest.mark.parametrize("others", ["ba", "bca", "bc", "acb", "cb", "xb"])
def test_ranks_that_could_wait_for_each_other_are_refused(others: str) -> None:
    with pytest.raises(
        ConfigError, match=r"talker\.place: .*writer .*in another order; name shared places in the same"
    ):
        check_order({"writer": list("abc"), "talker": list(others)})


@pytest.mark.parametrize("others", ["ab", "ac", "abc", "axcy", "xyz"])
def test_stages_with_one_first_place_and_one_order_are_allowed(others: str) -> None:
    check_order({"writer": list("abc"), "talker": list(others), "other": list("uvw")})


def test_the_placement_checks_the_order_of_all_cut_stages() -> None:
    with pytest.raises(ConfigError, match=r"speaker\.place: cpu/2,cpu shares .* with writer \(cpu,cpu/2\)"):
        Placement.of(cut(writer=("cpu,cpu/2", 2), speaker=("cpu/2,cpu", 2)), "cpu")
    with pytest.raises(ConfigError, match=r"writer\.place: cpu is 1 place"):
        Placement.of(cut(writer=(None, 2)), "cpu")


# The setting.


def layers(place: str, ranks: object) -> list[SettingsLayer]:
    return [*layers_of(overrides={"writer.tensor_parallel": ranks}, place={"writer": place})]


def test_users_set_the_number_of_ranks(tmp_path: Path) -> None:
    checkpoint = Checkpoint(ranked_model(tmp_path))
    config = tmp_path / "omni.toml"
    config.write_text('[writer]\ntensor_parallel = 2\nplace = "cpu,cpu/2"\n')
    for given in (layers("cpu,cpu/2", 2), layers("cpu,cpu/2", "2"), layers_of(config=config)):
        plan = resolve_pipeline(checkpoint, ranked_plugins(), given)
        assert plan.pipeline.stage("writer").tensor_parallel == 2
        assert Placement.of(plan.pipeline, "cpu").ranks == {"writer": ("cpu", "cpu/2")}
    assert resolve_pipeline(checkpoint, ranked_plugins()).pipeline.stage("writer").tensor_parallel == 1


@pytest.mark.parametrize("ranks", [0, -1, 65, 1.5, "two", None])
def test_a_number_of_ranks_that_is_none_is_refused(tmp_path: Path, ranks: object) -> None:
    with pytest.raises(ConfigError, match=r"writer\.tensor_parallel"):
        resolve_pipeline(Checkpoint(ranked_model(tmp_path)), ranked_plugins(), layers("cpu,cpu/2", ranks))


def test_a_kind_that_is_not_cut_by_layers_is_named(tmp_path: Path) -> None:
    """One that is not cut, and one that is cut by tensors only."""
    (tmp_path / "ranked").mkdir()
    given = layers_of(overrides={"writer.pipeline_parallel": 2}, place={"writer": "cpu,cpu/2"})
    for plugins, model, kind in (
        (echo_plugins(), echo_model(tmp_path), "echo"),
        (ranked_plugins(), ranked_model(tmp_path / "ranked"), "adder"),
    ):
        with pytest.raises(ConfigError, match=rf"writer\.pipeline_parallel: is 2, and stages of kind '{kind}' are not"):
            resolve_pipeline(Checkpoint(model), plugins, given)


def test_users_have_experts_divided(tmp_path: Path) -> None:
    """In each of the ways that other settings are given."""
    checkpoint, plugins = Checkpoint(ranked_model(tmp_path)), ranked_plugins()
    config = tmp_path / "omni.toml"
    config.write_text('[writer]\ntensor_parallel = 2\nexpert_parallel = true\nplace = "cpu,cpu/2"\n')
    for value in (True, "true"):
        given = [*layers("cpu,cpu/2", 2), *layers_of(overrides={"writer.expert_parallel": value})]
        assert resolve_pipeline(checkpoint, plugins, given).pipeline.stage("writer").expert_parallel is True
    plan = resolve_pipeline(checkpoint, plugins, layers_of(config=config))
    assert plan.pipeline.stage("writer").expert_parallel is True
    assert resolve_pipeline(checkpoint, plugins).pipeline.stage("writer").expert_parallel is False
    off = layers_of(overrides={"writer.expert_parallel": False})
    assert resolve_pipeline(checkpoint, plugins, off).pipeline.stage("writer").expert_parallel is False


@pytest.mark.parametrize("value", [2, "perhaps", None])
def test_a_value_that_is_neither_true_nor_false_is_refused(tmp_path: Path, value: object) -> None:
    given = [*layers("cpu,cpu/2", 2), *layers_of(overrides={"writer.expert_parallel": value})]
    with pytest.raises(ConfigError, match=r"writer\.expert_parallel"):
        resolve_pipeline(Checkpoint(ranked_model(tmp_path)), ranked_plugins(), given)


def test_experts_of_one_rank_are_not_divided(tmp_path: Path) -> None:
    given = layers_of(overrides={"writer.expert_parallel": True})
    text = (
        r"writer\.expert_parallel: is true, and writer\.tensor_parallel is 1: there is one rank, which holds all experts; "
        r"set writer\.tensor_parallel to the number of ranks, or leave it out"
    )
    with pytest.raises(ConfigError, match=text):
        resolve_pipeline(Checkpoint(ranked_model(tmp_path)), ranked_plugins(), given)


def test_a_kind_without_experts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be cut, and one that can, but whose experts cannot."""
    text = r"writer\.expert_parallel: is true, and stages of kind '{}' have no experts to divide; leave it out"
    one = layers_of(overrides={"writer.expert_parallel": True})
    with pytest.raises(ConfigError, match=text.format("echo")):
        resolve_pipeline(Checkpoint(echo_model(tmp_path)), echo_plugins(), one)
    (tmp_path / "ranked").mkdir()
    checkpoint = Checkpoint(ranked_model(tmp_path / "ranked"))
    monkeypatch.setattr(AdderKind, "expert_parallel", False)
    for _ in range(2):
        with pytest.raises(ConfigError, match=text.format("adder")):
            resolve_pipeline(checkpoint, ranked_plugins(), [*layers("cpu,cpu/2", 2), *one])
        monkeypatch.undo()
        monkeypatch.delattr(AdderKind, "expert_parallel")


def test_ranks_in_threads_are_refused() -> None:
    options = EngineOptions(process="thread")
    places = len(Placement.of(cut(writer=("cpu,cpu/2", 2)), "cpu").places)
    with pytest.raises(ConfigError, match=r"engine\.process"):
        runs_in_process(options, torch.device("cpu"), places)
