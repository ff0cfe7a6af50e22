"""`tensor_parallel` of a stage whose kind is not cut by tensors: a replica on each of its places, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from omni.api.settings import layers_of
from omni.checkpoint import Checkpoint
from omni.engine import Placement, Plan, check_pipeline, resolve_pipeline
from omni.errors import ConfigError
from omni.plugin.manager import Plugins
from tests.support.echo_family import echo_model, echo_plugins
from tests.support.ranked_family import AdderKind, ranked_model, ranked_plugins


def resolved(
    folder: Path,
    place: str | None,
    settings: Mapping[str, object] = MappingProxyType({}),
    plugins: Plugins | None = None,
) -> Plan:
    """settings: of the writer."""
    overrides = {f"writer.{name}": value for name, value in settings.items()}
    layers = layers_of(overrides=overrides, place={"writer": place} if place is not None else {})
    return resolve_pipeline(Checkpoint(folder), plugins or echo_plugins(), layers)


@pytest.mark.parametrize(
    ("place", "settings", "text"),
    [
        ("cpu,cpu/2", {"tensor_parallel": 2}, "2 replicas of the whole model instead of tensor_parallel=2"),
        ("cpu/2,cpu,cpu/3", {"tensor_parallel": 3}, "3 replicas of the whole model instead of tensor_parallel=3"),
        ("cuda:0,cpu", {"tensor_parallel": 2}, "2 replicas of the whole model instead of tensor_parallel=2"),
        ("cuda:0,cuda:0/b", {"tensor_parallel": 2}, "2 replicas of the whole model instead of tensor_parallel=2"),
        ("cpu,cpu/2,cpu/3,cpu/4", {"tensor_parallel": 2}, "4 replicas of the whole model instead of tensor_parallel=2"),
        (
            "cpu,cpu/2",
            {"tensor_parallel": 2, "expert_parallel": True},
            "2 replicas of the whole model instead of tensor_parallel=2 and expert_parallel=true",
        ),
    ],
)
def test_the_whole_model_is_on_each_place(tmp_path: Path, place: str, settings: dict[str, object], text: str) -> None:
    folder = echo_model(tmp_path)
    plan = resolved(folder, place, settings)
    assert plan.replicated == {"writer": f"kind 'echo' is not cut by tensors: {text}"}
    assert plan.pipeline == resolved(folder, place).pipeline
    found = Placement.of(plan.pipeline, "cpu")
    assert (found.stages["writer"], found.ranks) == (tuple(place.split(",")), {})
    again = check_pipeline(plan.pipeline, echo_plugins())  # as the process of each engine does
    assert (again.pipeline, again.replicated) == (plan.pipeline, {})


DIVIDED = {"tensor_parallel": 2, "expert_parallel": True}


@pytest.mark.parametrize("removes", [False, True])
def test_a_kind_says_whether_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removes: bool) -> None:
    folder = ranked_model(tmp_path)
    given = resolved(folder, "cpu,cpu/2", DIVIDED, ranked_plugins())
    assert (given.pipeline.stage("writer").ranks, given.replicated) == (2, {})
    if removes:
        monkeypatch.delattr(AdderKind, "tensor_parallel")
    else:
        monkeypatch.setattr(AdderKind, "tensor_parallel", False)
    plan = resolved(folder, "cpu,cpu/2", DIVIDED, ranked_plugins())
    assert plan.pipeline.stage("writer").ranks == 1
    assert not plan.pipeline.stage("writer").expert_parallel
    assert plan.replicated.keys() == {"writer"}


def test_a_replica_waits_for_no_other_stage(tmp_path: Path) -> None:
    """So its places may be those of a cut stage in another order."""
    settings = {"writer.tensor_parallel": 2, "singer.tensor_parallel": 2}
    layers = layers_of(overrides=settings, place={"writer": "cpu,cpu/2", "singer": "cpu/2,cpu"})
    plan = resolve_pipeline(Checkpoint(ranked_model(tmp_path)), ranked_plugins(), layers)
    found = Placement.of(plan.pipeline, "cpu")
    assert (found.ranks, found.stages["singer"]) == ({"writer": ("cpu", "cpu/2")}, ("cpu/2", "cpu"))
    assert plan.replicated.keys() == {"singer"}


@pytest.mark.parametrize(
    ("place", "settings", "text"),
    [
        (
            None,
            {"tensor_parallel": 2},
            "writer.place: engine.device is 1 place, and writer.tensor_parallel=2 takes 2 places, one for each replica; "
            'name so many, such as "cuda:0,cuda:1"',
        ),
        (
            "cpu,cpu/2,cpu/3",
            {"tensor_parallel": 2},
            "writer.place: cpu,cpu/2,cpu/3 are 3 places, and writer.tensor_parallel=2 takes 2 places, one for each replica; "
            'name so many, such as "cuda:0,cuda:1"',
        ),
        (
            "cpu,cpu/2",
            {"tensor_parallel": 4},
            "writer.place: cpu,cpu/2 are 2 places, and writer.tensor_parallel=4 takes 4 places, one for each replica; "
            'name so many, such as "cuda:0,cuda:1,cuda:2,cuda:3"',
        ),
        ("cpu,cpu/2", {"tensor_parallel": 0}, "writer.tensor_parallel: is 0; give a number from 1 to 64"),
        (
            None,
            {"tensor_parallel": 1, "expert_parallel": True},
            "writer.expert_parallel: is true, and stages of kind 'echo' have no experts to divide; leave it out",
        ),
        (
            "cpu,cpu/2,cpu/3,cpu/4",
            {"tensor_parallel": 2, "pipeline_parallel": 2},
            "writer.pipeline_parallel: is 2, and stages of kind 'echo' are not cut by layers; "
            "leave it out; writer.place with several places makes replicas of the whole stage",
        ),
    ],
)
def test_other_settings_are_refused_as_for_ranks(
    tmp_path: Path, place: str | None, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(echo_model(tmp_path), place, settings)
    assert str(caught.value) == text


def test_parts_of_the_sequence_of_layers_have_no_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that is cut by layers alone."""
    folder, places = ranked_model(tmp_path), "cpu,cpu/2,cpu/3,cpu/4"
    monkeypatch.setattr(AdderKind, "tensor_parallel", False)
    monkeypatch.setattr(AdderKind, "pipeline_parallel", True, raising=False)
    assert resolved(folder, "cpu,cpu/2", {"pipeline_parallel": 2}, ranked_plugins()).pipeline.stage("writer").ranks == 2
    with pytest.raises(
        ConfigError, match=r"^writer\.tensor_parallel: is 2, and stages of kind 'adder' are cut by layers"
    ):
        resolved(folder, places, {"tensor_parallel": 2, "pipeline_parallel": 2}, ranked_plugins())
