"""Where stages run by their settings, how the stages of a request are placed, and the connectors that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.connector import Reach
from omni.engine import ConnectorSelector, Placement, device_of
from omni.errors import ConfigError, PluginError
from omni.pipeline import Edge, Pipeline
from omni.plugin.entries import ConnectorEntry
from omni_local.connector import LocalConnector
from tests.support.fake_graph import PIPELINE
from tests.support.plugins import plugins_of

TO_WRITER, TO_SPEAKER = PIPELINE.edges
ALL = frozenset({"seer", "writer", "speaker"})


def placed(**places: str | Sequence[str]) -> Pipeline:
    stages = tuple(msgspec.structs.replace(stage, place=places.get(stage.name)) for stage in PIPELINE.stages)
    return msgspec.structs.replace(PIPELINE, stages=stages)


def placement(device: str = "cpu", **places: str | Sequence[str]) -> Placement:
    return Placement.of(placed(**places), device)


def test_without_a_setting_every_stage_is_on_the_engine_s_device() -> None:
    found = placement("cuda:3")
    assert found.stages == {"seer": ("cuda:3",), "writer": ("cuda:3",), "speaker": ("cuda:3",)}
    assert (found.main, found.places, found.on("cuda:3")) == ("cuda:3", ("cuda:3",), ALL)


def test_places_name_devices_replicas_and_further_processes() -> None:
    found = placement(writer="cuda:1, cuda:2", speaker="cpu/2")
    assert found.stages == {"seer": ("cpu",), "writer": ("cuda:1", "cuda:2"), "speaker": ("cpu/2",)}
    assert found.places == ("cpu", "cuda:1", "cuda:2", "cpu/2")
    assert found.on("cuda:2") == {"writer"}
    assert found.on("cuda:7") == frozenset()
    assert [str(device_of(place)) for place in found.places] == ["cpu", "cuda:1", "cuda:2", "cpu"]
    assert placement(writer=["cuda:1", "cuda:2"], speaker=("cpu/2",)) == found


@pytest.mark.parametrize("name", ["2", "3a", "second", "the_second", "_"])
def test_a_further_process_is_named_by_a_number_or_a_word(name: str) -> None:
    assert placement(writer=f"cpu/{name}").stages["writer"] == (f"cpu/{name}",)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("tpu", "writer.place: 'tpu' is not a device"),
        ("", "writer.place: '' is not a device"),
        ("cpu,", "writer.place: '' is not a device"),
        ("cpu/", "writer.place: 'cpu/' has no name after the slash"),
        ("cpu/a b", "writer.place: 'cpu/a b' has no name after the slash"),
        ("cpu/2/3", "writer.place: 'cpu/2/3' has no name after the slash"),
        ("cpu/2, cpu/2", "writer.place: 'cpu/2' is named twice"),
        ("/2", "writer.place: '/2' is not a device"),
        (["cpu", "tpu"], "writer.place: 'tpu' is not a device"),
        (["cpu,cpu/2"], "writer.place: 'cpu,cpu/2' is not a device"),
        ([], "writer.place: names no place"),
    ],
)
def test_a_place_that_is_none_is_refused_by_the_field(place: str | list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        placement(writer=place)
    assert str(caught.value).startswith(message)


def test_an_edge_has_a_pair_for_each_way_that_a_request_may_take() -> None:
    found = placement(writer="cpu/1, cpu/2", speaker="cpu/2, cpu/3")
    assert found.pairs(TO_WRITER) == (("cpu", "cpu/1"), ("cpu", "cpu/2"))
    assert found.pairs(TO_SPEAKER) == (("cpu/1", "cpu/2"), ("cpu/1", "cpu/3"), ("cpu/2", "cpu/2"))


def test_a_request_stays_by_its_producer_or_takes_the_least_load() -> None:
    pipeline = placed(seer="cpu/1, cpu/2", writer="cpu/1, cpu/2", speaker="cpu/3, cpu/4")
    found = Placement.of(pipeline, "cpu")
    load = {"cpu/1": 2, "cpu/2": 1, "cpu/3": 1}
    assert found.place_request(pipeline, ALL, load) == {"seer": "cpu/2", "writer": "cpu/2", "speaker": "cpu/4"}
    assert found.place_request(pipeline, ALL, {}) == {"seer": "cpu/1", "writer": "cpu/1", "speaker": "cpu/3"}
    assert found.place_request(pipeline, frozenset({"writer"}), load) == {"writer": "cpu/2"}


def test_a_producer_is_placed_where_it_reaches_an_open_consumer() -> None:
    pipeline = placed(writer="cpu/1, cpu/2", speaker="cpu/1, cpu/2")
    stages, closed = frozenset({"writer", "speaker"}), {"cpu/1": {"speaker"}}
    chosen = Placement.of(pipeline, "cpu").place_request(pipeline, stages, {"cpu/2": 1}, closed)
    assert chosen == {"writer": "cpu/2", "speaker": "cpu/2"}


PLACES = ("cpu", "cpu/1", "cpu/2", "cuda:0", "cuda:1")


@given(
    st.dictionaries(st.sampled_from(sorted(ALL)), st.lists(st.sampled_from(PLACES), min_size=1, unique=True)),
    st.sets(st.sampled_from(sorted(ALL))),
    st.dictionaries(st.sampled_from(PLACES), st.integers(0, 5)),
    st.dictionaries(st.sampled_from(PLACES), st.sets(st.sampled_from(sorted(ALL)))),
)
def test_any_request_goes_over_pairs_of_its_edges(
    places: Mapping[str, list[str]], stages: set[str], load: Mapping[str, int], closed: Mapping[str, set[str]]
) -> None:
    pipeline = placed(**{name: ",".join(each) for name, each in places.items()})
    found = Placement.of(pipeline, "cpu")
    chosen = found.place_request(pipeline, frozenset(stages), load, closed)
    assert chosen.keys() == stages
    assert all(place in found.stages[name] for name, place in chosen.items())
    assert set(found.places) == {place for name in ALL for place in found.stages[name]}
    assert goes(pipeline, found, chosen)
    if any(name in closed.get(place, ()) for name, place in chosen.items()):
        ways = [dict(zip(chosen, way, strict=True)) for way in product(*(found.stages[name] for name in chosen))]
        open_ways = [w for w in ways if not any(name in closed.get(place, ()) for name, place in w.items())]
        assert not any(goes(pipeline, found, way) for way in open_ways), "a closed replica, and there is another way"


def goes(pipeline: Pipeline, placement: Placement, chosen: Mapping[str, str]) -> bool:
    """Whether a request may use these places."""
    edges = [edge for edge in pipeline.edges if {edge.producer, edge.consumer} <= chosen.keys()]
    return all((chosen[edge.producer], chosen[edge.consumer]) in placement.pairs(edge) for edge in edges)


class CpuOnly(LocalConnector):
    """Reaches other processes, and serves no GPU."""

    reach = Reach.HOST
    raw_device_tensors = False

    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return producer.type == consumer.type == "cpu"


class GpuOnly(CpuOnly):
    def serves(self, producer: torch.device, consumer: torch.device) -> bool:
        return producer.type == consumer.type == "cuda"


class Raw(CpuOnly):
    raw_device_tensors = True


KINDS: dict[str, type[LocalConnector]] = {"local": LocalConnector, "cuda_ipc": GpuOnly, "shm": CpuOnly}


def selector(kinds: Mapping[str, type[LocalConnector]] = KINDS) -> ConnectorSelector:
    """Among connectors of this file by name."""
    entries = {name: ConnectorEntry(name=name, connector=f"{k.__module__}:{k.__name__}") for name, k in kinds.items()}
    plugins = plugins_of("local")
    return ConnectorSelector(replace(plugins, connectors=replace(plugins.connectors, entries=entries)))


@pytest.mark.parametrize(
    ("producer", "consumer", "name", "why"),
    [
        ("cpu", "cpu", "local", "same process, same device"),
        ("cuda:1", "cuda:1", "local", "same process, same device"),
        ("cpu/2", "cpu/2", "local", "same process, same device"),
        ("cpu", "cpu/2", "shm", "two processes on cpu"),
        ("cpu/3", "cpu/2", "shm", "two processes on cpu"),
        ("cuda:0", "cuda:0/b", "cuda_ipc", "two processes on cuda:0"),
        ("cuda:0", "cuda:1", "cuda_ipc", "two processes, on cuda:0 and cuda:1"),
    ],
)
def test_the_connector_follows_from_the_places(producer: str, consumer: str, name: str, why: str) -> None:
    choice = selector().choose(TO_SPEAKER, producer, consumer)
    assert (choice.name, choice.why) == (name, why)
    assert type(choice.connector) is KINDS[name]


@pytest.mark.parametrize(
    ("cuda_ipc", "shm", "name"),
    [(CpuOnly, CpuOnly, "cuda_ipc"), (Raw, CpuOnly, "cuda_ipc"), (CpuOnly, Raw, "shm"), (Raw, None, "cuda_ipc")],
)
def test_device_tensors_go_raw_where_a_connector_serves_them(
    cuda_ipc: type[LocalConnector], shm: type[LocalConnector] | None, name: str
) -> None:
    both = selector({"cuda_ipc": cuda_ipc} | ({"shm": shm} if shm is not None else {}))
    assert both.choose(TO_SPEAKER, "cpu", "cpu/2").name == name


def test_places_that_no_connector_serves_are_refused_by_the_edge() -> None:
    with pytest.raises(ConfigError) as caught:
        selector().choose(TO_SPEAKER, "cpu", "cuda:1")
    problem = "no connector serves two processes, on cpu and cuda:1; place the stages otherwise"
    assert str(caught.value) == f"edges.writer-speaker: {problem}"


def set_to(name: str) -> Edge:
    return msgspec.structs.replace(TO_SPEAKER, connector=name)


def test_a_connector_that_is_set_is_taken_where_it_serves() -> None:
    choices = selector()
    choice = choices.choose(set_to("shm"), "cpu", "cpu")
    assert (choice.name, choice.why) == ("shm", "as set; same process, same device")
    assert choices.choose(set_to("shm"), "cpu", "cpu/2").connector is choice.connector, "one object for every edge"
    assert choices.choose(set_to("cuda_ipc"), "cuda:0", "cuda:1").why == "as set; two processes, on cuda:0 and cuda:1"


@pytest.mark.parametrize(
    ("name", "producer", "consumer", "problem"),
    [
        ("local", "cpu", "cpu/2", "'local' stays in one process, and the stages are on cpu and cpu/2"),
        ("local", "cuda:0", "cuda:1", "'local' stays in one process, and the stages are on cuda:0 and cuda:1"),
        ("shm", "cpu", "cuda:1", "'shm' does not connect cpu and cuda:1"),
        ("cuda_ipc", "cpu", "cpu", "'cuda_ipc' does not connect cpu and cpu"),
    ],
)
def test_a_connector_that_is_set_and_cannot_work_is_refused(
    name: str, producer: str, consumer: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        selector().choose(set_to(name), producer, consumer)
    remedy = "leave it out, or place the stages otherwise"
    assert str(caught.value) == f"edges.writer-speaker.connector: {problem}; {remedy}"


def test_a_connector_that_is_not_installed_is_named() -> None:
    for edge, known in ((set_to("fabric"), "fabric"), (TO_SPEAKER, "shm")):
        with pytest.raises(PluginError, match=f"there is no connector '{known}'"):
            selector({"local": LocalConnector}).choose(edge, "cpu", "cpu/2")


def test_all_ways_of_all_edges_are_checked_before_anything_is_built() -> None:
    good = placed(writer="cpu/1, cpu/2", speaker="cpu/2")
    selector().check(good, Placement.of(good, "cpu"))
    bad = placed(writer="cpu/1, cpu/2", speaker="cpu/2, cuda:0")
    with pytest.raises(ConfigError, match=r"edges.writer-speaker: no connector serves .* on cpu and cuda:0"):
        selector().check(bad, Placement.of(bad, "cpu"))


def test_an_engine_opens_the_edges_with_an_end_on_its_place() -> None:
    pipeline = placed(writer="cpu/1, cpu/2", speaker="cpu/2, cpu/3")
    found = Placement.of(pipeline, "cpu")

    def opened(place: str) -> list[tuple[str, str, str, bool]]:
        edges = selector().open_edges(pipeline, found, place)
        return [(each.edge.consumer, each.producer, each.consumer, type(each.connector) is CpuOnly) for each in edges]

    assert opened("cpu") == [("writer", "cpu", "cpu/1", True), ("writer", "cpu", "cpu/2", True)]
    assert opened("cpu/2") == [
        ("writer", "cpu", "cpu/2", True),
        ("speaker", "cpu/1", "cpu/2", True),
        ("speaker", "cpu/2", "cpu/2", False),
    ]
    assert opened("cpu/3") == [("speaker", "cpu/1", "cpu/3", True)]
    assert opened("cuda:0") == []
