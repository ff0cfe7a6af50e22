"""A model as an immutable graph of stages."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TypeVar

import msgspec

from omni.errors import ConfigError, quoted, type_of
from omni.pipeline.stage import Edge, PipelineOutput, Stage
from omni.utils.origin import caller, with_place

FRONTEND = "frontend"
"""The source name of the front end's inputs, and the first part of its settings' paths; no stage may have this name."""
ENGINE = "engine"
"""The first part of the paths of the engine's settings; no stage may have this name."""


PartT = TypeVar("PartT", Stage, Edge, PipelineOutput)


class UnknownPartError(KeyError):
    """A pipeline has no part of that name. Its message is that of a ConfigError."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its repr


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A model family's graph for a checkpoint.

    frontend: `"module:function"` that builds the family's `omni.frontend.Frontend`. outputs: one per modality, at least one
    by default. family_modalities: those of the front end, set when `extended` adds outputs; empty for the default ones.
    """

    family: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...] = ()
    outputs: tuple[PipelineOutput, ...]
    frontend: str
    family_modalities: tuple[str, ...] = ()

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises KeyError, which lists the existing stages."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise _unknown("stages", "stage", name, [stage.name for stage in self.stages])

    def edge(self, producer: str, consumer: str) -> Edge:
        """The edge between two stages. Raises KeyError, which lists the existing edges."""
        for edge in self.edges:
            if (edge.producer, edge.consumer) == (producer, consumer):
                return edge
        raise _unknown("edges", "edge", f"{producer}->{consumer}", [edge.name for edge in self.edges])

    def extended(
        self, *, stages: Iterable[Stage] = (), edges: Iterable[Edge] = (), outputs: Iterable[PipelineOutput] = ()
    ) -> "Pipeline":
        """The pipeline with more parts. A part takes the place of an existing one: a stage of its name, an edge between its two
        stages, an output of its modality. Raises ConfigError for an object that is not a part."""
        outputs = _parts("outputs", outputs, PipelineOutput)
        return msgspec.structs.replace(
            self,
            stages=_merged(self.stages, _parts("stages", stages, Stage), lambda stage: stage.name),
            edges=_merged(self.edges, _parts("edges", edges, Edge), lambda edge: edge.name),
            outputs=_merged(self.outputs, outputs, lambda output: output.modality),
            family_modalities=self.family_modalities or (self.default_modalities if outputs else ()),
        )

    @property
    def sampling_stages(self) -> tuple[str, ...]:
        """The stages that sample: those whose options have a field `sampling`, with the defaults."""
        return tuple(stage.name for stage in self.stages if "sampling" in stage.options.__struct_fields__)

    @property
    def default_modalities(self) -> tuple[str, ...]:
        """The modalities of a request that names none."""
        return tuple(output.modality for output in self.outputs if output.default)

    @property
    def text_stage(self) -> str | None:
        """The stage that writes the text; None if there is none."""
        return next((output.stage for output in self.outputs if output.modality == "text"), None)

    @property
    def main_stage(self) -> str | None:
        """The stage that stage-less sampling parameters apply to: the text stage, else the first stage that samples."""
        return self.text_stage or next(
            (stage.name for stage in self.order() if stage.name in self.sampling_stages), None
        )

    def edges_from(self, stage: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.producer == stage)

    def edges_into(self, stage: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.consumer == stage)

    def order(self) -> tuple[Stage, ...]:
        """The stages, producers before consumers. Raises ConfigError if edges form a cycle."""
        return self._ordered

    @cached_property
    def _ordered(self) -> tuple[Stage, ...]:
        ordered: list[Stage] = []
        left = list(self.stages)
        while left:
            placed = {stage.name for stage in ordered}
            free = [s for s in left if all(e.producer in placed for e in self.edges_into(s.name))]
            if not free:
                names = ", ".join(stage.name for stage in left)
                raise ConfigError("pipeline.edges", f"form a cycle among {names}", "remove an edge")
            ordered += free
            left = [stage for stage in left if stage not in free]
        return tuple(ordered)

    def active(self, modalities: Iterable[str], fed: Iterable[str]) -> frozenset[str]:
        """The stages of a request: those that `fed` front-end inputs reach and that reach a wanted output."""
        sources, useful = frozenset(fed), self._needed(modalities)
        reached: set[str] = set()
        for stage in self.order():
            if stage.name in sources or any(e.producer in reached for e in self.edges_into(stage.name)):
                reached.add(stage.name)
        return frozenset(useful & reached)

    def prepared(self, modalities: Iterable[str]) -> frozenset[str]:
        """The modalities that a front end has to prepare for: the requested ones, and those of the family with a stage that no
        other modality has and the requested ones need. Codes of a talker, for example, need the same inputs as its speech."""
        asked = frozenset(modalities)
        needed, known = self._needed(asked), self.family_modalities or self.default_modalities
        return asked | {
            name
            for name in known
            if needed & (self._needed([name]) - self._needed(other for other in known if other != name))
        }

    def _needed(self, modalities: Iterable[str]) -> frozenset[str]:
        """The stages that lead to an output of these modalities."""
        asked = frozenset(modalities)
        wanted = frozenset(output.stage for output in self.outputs if output.modality in asked)
        # Cached: every request needs it, and there are few sets of outputs.
        found = self._leading.get(wanted)
        if found is None:
            needed = set[str]()
            for stage in reversed(self.order()):
                if stage.name in wanted or any(e.consumer in needed for e in self.edges_from(stage.name)):
                    needed.add(stage.name)
            found = self._leading[wanted] = frozenset(needed)
        return found

    @cached_property
    def _leading(self) -> dict[frozenset[str], frozenset[str]]:
        """Stages that lead to stages with outputs, by the latter; filled as they are asked for."""
        return {}


def _unknown(field: str, what: str, name: object, names: Sequence[str]) -> UnknownPartError:
    near = get_close_matches(str(name), names, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names) or 'none: there are none'}"
    return UnknownPartError(f"pipeline.{field}", f"there is no {what} {quoted(name)}", remedy)


def _parts(field: str, given: object, kind: type[PartT]) -> tuple[PartT, ...]:
    parts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else None
    wrong = given if parts is None else next((part for part in parts if not isinstance(part, kind)), None)
    if parts is None or wrong is not None:
        what = "is" if parts is None else "has"
        problem = with_place(f"{what} {type_of(wrong)}, {quoted(wrong)}", caller())
        raise ConfigError(f"pipeline.{field}", problem, f"give a list of {kind.__name__}")
    return parts


def _merged(before: Iterable[PartT], more: Iterable[PartT], name: Callable[[PartT], str]) -> tuple[PartT, ...]:
    parts = {name(part): part for part in before}
    parts.update((name(part), part) for part in more)
    return tuple(parts.values())
