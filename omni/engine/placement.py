"""The places of stages, and the connectors of edges that follow from them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Literal

import torch

from omni.config import SettingsLayer
from omni.connector import Connector, Reach
from omni.device import check_exists, name_device
from omni.engine.peers import OpenEdge
from omni.errors import ConfigError, plugin_setup, quoted
from omni.parallel import RankLayout
from omni.pipeline import ENGINE, FRONTEND, Edge, Pipeline, Stage
from omni.plugin import call_entry, expect, locate
from omni.plugin.manager import Plugins

_DERIVED = ("cuda_ipc", "shm")
"""Connectors between processes that are selected without a setting: the first that passes raw device tensors, else the first."""


@dataclass(frozen=True)
class Placement:
    """stages: the places of each stage, one for each of its replicas; of a stage that is cut across engines that of rank 0, where
    its requests and edges are. ranks, layouts: of such stages alone, the places of all ranks in order, and what each holds.

    A place is an engine, named by its device (`"cuda:1"`), or by its device and a further word (`"cpu/2"`) for one more
    engine there. main: the place of stages without a setting.
    """

    stages: Mapping[str, tuple[str, ...]]
    main: str
    ranks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layouts: Mapping[str, RankLayout] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, device: str) -> "Placement":
        """The placement that `Stage.place` and `Stage.ranks` specify. device: `engine.device`. Raises ConfigError for a place that
        is not a device, and for places that cannot be those of ranks."""
        main = str(name_device(device))
        stages = {stage.name: places_of(stage.place, f"{stage.name}.place") or (main,) for stage in pipeline.order()}
        cut = [stage for stage in pipeline.order() if stage.ranks > 1]
        ranks = {stage.name: stages[stage.name] for stage in cut}
        for stage in cut:
            check_ranks(stage, ranks[stage.name])
        check_order(ranks)
        layouts = {stage.name: RankLayout(stage.tensor_parallel, stage.pipeline_parallel) for stage in cut}
        return cls({**stages, **{name: places[:1] for name, places in ranks.items()}}, main, ranks, layouts)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """All places, in the order of the pipeline."""
        return tuple(dict.fromkeys(place for places in self.engines.values() for place in places))

    @cached_property
    def engines(self) -> Mapping[str, tuple[str, ...]]:
        """The places of all engines of each stage."""
        return {stage: self.ranks.get(stage, places) for stage, places in self.stages.items()}

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The places by engines that start and end together: those with ranks of one stage, rank 0 first, and each other place
        alone. In the order of `places`."""
        leaders = {place: ranks[0] for ranks in self.ranks.values() for place in ranks}
        groups: dict[str, list[str]] = {}
        for place in self.places:
            groups.setdefault(leaders.get(place, place), []).append(place)
        return tuple((leader, *(place for place in group if place != leader)) for leader, group in groups.items())

    def on(self, place: str) -> frozenset[str]:
        """The stages on a place, those with a rank there too."""
        return frozenset(stage for stage, places in self.engines.items() if place in places)

    def followed(self, place: str) -> frozenset[str]:
        """The stages with another rank than 0 on a place."""
        return frozenset(stage for stage, places in self.ranks.items() if place in places[1:])

    def ranks_on(self, place: str) -> dict[str, int]:
        """The rank of each stage with a rank on a place, in the order of the pipeline."""
        return {stage: places.index(place) for stage, places in self.ranks.items() if place in places}

    def rank_names(self, place: str) -> str:
        """The ranks on a place, for errors: such as `"rank 2 of 3 of stage 'text'"`, or `""` for none."""
        ranks = self.ranks_on(place).items()
        return " and ".join(f"rank {rank} of {len(self.ranks[stage])} of stage {stage!r}" for stage, rank in ranks)

    def pairs(self, edge: Edge) -> tuple[tuple[str, str], ...]:
        """The places of producer and consumer that a request may use: the same one where both have it."""
        consumers = self.stages[edge.consumer]
        return tuple(
            (producer, consumer)
            for producer in self.stages[edge.producer]
            for consumer in ((producer,) if producer in consumers else consumers)
        )

    def place_request(
        self,
        pipeline: Pipeline,
        stages: frozenset[str],
        load: Mapping[str, int],
        closed: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> dict[str, str]:
        """The places of a request's stages: that of a producer if possible, else the one of least load.

        closed: by place, the stages that are closed there after a fault. They are avoided as long as there is an alternative.
        """
        chosen: dict[str, str] = {}
        open_places = self._open_places(pipeline, stages, closed) if any(closed.values()) else self.stages
        for stage in pipeline.order():
            if stage.name in stages:
                near = [chosen[e.producer] for e in pipeline.edges_into(stage.name) if e.producer in chosen]
                places = self.stages[stage.name]
                chosen[stage.name] = next((place for place in near if place in places), None) or min(
                    open_places[stage.name], key=lambda place: load.get(place, 0)
                )
        return chosen

    def _open_places(
        self, pipeline: Pipeline, stages: frozenset[str], closed: Mapping[str, Collection[str]]
    ) -> Mapping[str, Sequence[str]]:
        """The places of each of `stages` where it is open, and from which an open place of every consumer can be reached; all
        places of a stage that has no such place."""
        found: dict[str, Sequence[str]] = {}
        for stage in reversed(pipeline.order()):
            edges = [edge for edge in pipeline.edges_from(stage.name) if edge.consumer in stages]
            reached = [{one for one, other in self.pairs(e) if other in found[e.consumer]} for e in edges]
            places = [
                place
                for place in self.stages[stage.name]
                if stage.name not in closed.get(place, ()) and all(place in near for near in reached)
            ]
            found[stage.name] = places or self.stages[stage.name]
        return found


def device_of(place: str) -> torch.device:
    """The device of a place. Raises ConfigError for an invalid name."""
    return name_device(place.partition("/")[0])


def places_of(place: str | Sequence[str] | None, field: str) -> tuple[str, ...]:
    """The places that a stage's `place` names, none for None. Raises ConfigError, naming `field`, for an invalid place."""
    places: list[str] = []
    for each in place.split(",") if isinstance(place, str) else place or ():
        device, slash, name = each.strip().partition("/")
        try:
            found = f"{name_device(device)}{slash}{name}"
        except ConfigError:
            problem = f"{quoted(each.strip())} is not a device"
            raise ConfigError(field, problem, 'use "cpu" or "cuda:N"; "cpu/2" is one more process there') from None
        if slash and not name.isidentifier() and not name.isalnum():
            raise ConfigError(field, f"{quoted(each.strip())} has no name after the slash", 'use a word: "cpu/2"')
        if found in places:
            raise ConfigError(field, f"{quoted(found)} is named twice", "name each place once")
        places.append(found)
    if place is not None and not places:
        raise ConfigError(field, "names no place", 'use "cpu" or "cuda:N", or leave it out')
    return tuple(places)


def check_set_places(layers: Sequence[SettingsLayer]) -> None:
    """Raises ConfigError for settings `STAGE.place` that name no device, or one that is not here. The stages need not be known."""
    places: dict[str, tuple[str, object]] = {}
    for layer in layers:
        for path, value in layer.values.items():
            stage, dot, option = path.partition(".")
            if not dot and isinstance(value, Mapping) and "place" in value:
                option, value = "place", value["place"]
            if option == "place" and stage not in (ENGINE, FRONTEND):
                places[stage] = layer.name(f"{stage}.place"), value
    for name, place in places.values():
        if isinstance(place, str) or (isinstance(place, list | tuple) and all(isinstance(one, str) for one in place)):
            _check_here(places_of(place, name), name)


def check_places_exist(placement: Placement) -> None:
    """Raises ConfigError for a place whose device is not here."""
    for stage, places in placement.engines.items():
        _check_here(places, f"{stage}.place")


def _check_here(places: Sequence[str], name: str) -> None:
    for place in places:
        check_exists(device_of(place), name)


def check_ranks(stage: Stage, places: Sequence[str]) -> None:
    """Raises ConfigError for places that cannot be those of a stage's ranks."""
    field, given, ranks = f"{stage.name}.place", ",".join(places), stage.ranks
    if len(places) > ranks and len(places) % ranks == 0:
        problem = f"{given} are {len(places)} places, and replicas of a stage that is cut are not supported yet"
        raise ConfigError(field, problem, f"name {ranks} places, one for each rank")
    check_count(stage, places, "rank")
    devices = [device_of(place) for place in places]
    if len({device.type for device in devices}) > 1:
        raise ConfigError(field, f"{given} are different kinds of devices", "name places of one kind for all ranks")
    twice = next((d for d in devices if d.type == "cuda" and devices.count(d) > 1), None)
    if twice is not None:
        raise ConfigError(field, f"{given} has several ranks on {twice}", "name a GPU for each rank")


def check_count(stage: Stage, places: Sequence[str], each: Literal["rank", "replica"]) -> None:
    """Raises ConfigError for another number of places than the stage's settings ask for. each: what a place has."""
    ranks = stage.ranks
    if len(places) == ranks:
        return
    settings = {"tensor_parallel": stage.tensor_parallel, "pipeline_parallel": stage.pipeline_parallel}
    chosen = " and ".join(f"{stage.name}.{name}={number}" for name, number in settings.items() if number > 1)
    count = "is 1 place" if len(places) == 1 else f"are {len(places)} places"
    example = ",".join(f"cuda:{index}" for index in range(min(ranks, 4))) + (",..." if ranks > 4 else "")
    problem = f"{','.join(places)} {count}, and {chosen} takes {ranks} places, one for each {each}"
    raise ConfigError(f"{stage.name}.place", problem, f'name so many, such as "{example}"')


def check_order(ranks: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError for stages that share places and have another rank 0, or their ranks in another order.

    The engine of rank 0 begins the steps of a stage, and a step waits for all ranks. With one engine that begins those of all
    stages which share places, no two engines wait for each other in steps of different stages.
    """
    for (one, places), (other, others) in combinations(ranks.items(), 2):
        shared = [place for place in places if place in others]
        if shared and (places[0] != others[0] or shared != [place for place in others if place in places]):
            problem = f"{','.join(others)} shares {', '.join(shared)} with {one} ({','.join(places)})"
            remedy = "name shared places in the same order, with the same place first"
            raise ConfigError(f"{other}.place", f"{problem}, whose ranks are in another order", remedy)


@dataclass(frozen=True, slots=True)
class ConnectorChoice:
    """A connector for two places: its registered name, and the reason for it."""

    name: str
    why: str
    connector: Connector


class ConnectorSelector:
    """Selects the connectors of edges by placement, and by the setting `edges.NAME.connector`."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._made: dict[str, Connector] = {}

    def choose(self, edge: Edge, producer: str, consumer: str) -> ConnectorChoice:
        """Chooses the connector of an edge between two places. Raises ConfigError for a setting that cannot work there, and
        PluginError for a connector that is not installed."""
        where = _where(producer, consumer)
        if edge.connector is not None:
            connector = self._connector(edge.connector)
            problem = self._problem(edge.connector, connector, producer, consumer)
            if problem is not None:
                raise ConfigError(f"{edge.setting}.connector", problem, "leave it out, or place the stages otherwise")
            return ConnectorChoice(edge.connector, f"as set; {where}", connector)
        if producer == consumer:
            return ConnectorChoice("local", where, self._connector("local"))
        serving: ConnectorChoice | None = None
        for name in _DERIVED:
            if name not in self._plugins.connectors.entries and (serving is not None or name != _DERIVED[-1]):
                continue  # the last one serves all devices: without it there is none
            connector = self._connector(name)
            if self._problem(name, connector, producer, consumer) is None:
                choice = ConnectorChoice(name, where, connector)
                if connector.raw_device_tensors:
                    return choice
                serving = serving or choice
        if serving is None:
            raise ConfigError(edge.setting, f"no connector serves {where}", "place the stages otherwise")
        return serving

    def open_edges(self, pipeline: Pipeline, placement: Placement, place: str) -> list[OpenEdge]:
        """The edges with an end on a place."""
        return [
            OpenEdge(edge, self.choose(edge, producer, consumer).connector, producer, consumer)
            for edge in pipeline.edges
            for producer, consumer in placement.pairs(edge)
            if place in (producer, consumer)
        ]

    def open_outputs(self, pipeline: Pipeline, stages: frozenset[str], place: str) -> list[OpenEdge]:
        """The ways of outputs with tensors from stages of a place to the user."""
        routes = [output.route for output in pipeline.outputs if output.stage in stages]
        return [
            OpenEdge(route, self.choose(route, place, place).connector, place, place)
            for route in routes
            if route is not None
        ]

    def check(self, pipeline: Pipeline, placement: Placement) -> None:
        """Raises ConfigError or PluginError if an edge has no connector."""
        for edge in pipeline.edges:
            for producer, consumer in placement.pairs(edge):
                self.choose(edge, producer, consumer)

    def _connector(self, name: str) -> Connector:
        if name not in self._made:
            path, field = self._plugins.connectors[name].connector, f"connectors.{name}"
            with plugin_setup(field, f"correct {path}", locate(path, field)):  # its properties are asked too
                made = call_entry(path, field, Connector)  # type: ignore[type-abstract]
                expect(made.reach, Reach, f"{field}.reach", type(made))
                expect(made.raw_device_tensors, bool, f"{field}.raw_device_tensors", type(made))
            self._made[name] = made
        return self._made[name]

    def _problem(self, name: str, connector: Connector, producer: str, consumer: str) -> str | None:
        if producer != consumer and connector.reach is Reach.PROCESS:
            return f"{name!r} stays in one process, and the stages are on {producer} and {consumer}"
        field, serves = f"connectors.{name}.serves", connector.serves
        with plugin_setup(field, "correct the connector, or choose another one for the edge", serves):
            served = expect(serves(device_of(producer), device_of(consumer)), bool, field, serves)
        if not served:
            return f"{name!r} does not connect {producer} and {consumer}"
        return None


def _where(producer: str, consumer: str) -> str:
    if producer == consumer:
        return "same process, same device"
    devices = device_of(producer), device_of(consumer)
    if devices[0] == devices[1]:
        return f"two processes on {devices[0]}"
    return f"two processes, on {devices[0]} and {devices[1]}"
