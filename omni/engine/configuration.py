"""The settings of a pipeline's stages and edges, applied to it."""

from collections.abc import Sequence

import msgspec

from omni.config import Setting, SettingsLayer, overlay
from omni.errors import ConfigError
from omni.pipeline import (
    EDGES,
    ENGINE,
    FRONTEND,
    Edge,
    EdgeSettings,
    Pipeline,
    PipelineOutput,
    Stage,
    hidden_states_of,
)

_STAGE_SETTINGS = (
    ("dtype", str | None, None),
    ("place", str | tuple[str, ...] | None, None),
    ("tensor_parallel", int, 1),
    ("expert_parallel", bool, False),
    ("pipeline_parallel", int, 1),
)
"""Fields of `Stage` that users set beside its options."""


def configure(pipeline: Pipeline, layers: Sequence[SettingsLayer]) -> tuple[Pipeline, tuple[Setting, ...]]:
    """The pipeline with the settings of its stages and edges from layers, and the origin of each. Raises ConfigError."""
    before = {stage.name: _settable(stage) for stage in pipeline.stages}
    others = (EDGES, ENGINE, FRONTEND)
    after, settings = overlay(before, [layer.without(*others) for layer in layers], others)
    stages = tuple(_with_settings(stage, after[stage.name]) for stage in pipeline.stages)
    edges, edge_settings = _configure_edges(pipeline.edges, layers)
    configured = msgspec.structs.replace(pipeline, stages=stages, edges=edges)
    return _with_hidden_states(configured), (*settings, *edge_settings)


def _with_hidden_states(pipeline: Pipeline) -> Pipeline:
    """An output on request for the hidden states that a stage keeps."""
    given = {output.stage for output in pipeline.outputs if output.hidden_states}
    keeping = [s.name for s in pipeline.stages if msgspec.structs.asdict(s.options).get("hidden_layers")]
    more = [
        PipelineOutput(modality=hidden_states_of(name), stage=name, default=False, hidden_states=True)
        for name in keeping
        if name not in given
    ]
    return pipeline.extended(outputs=more)


def _settable(stage: Stage) -> msgspec.Struct:
    """The stage's options, in a struct derived from theirs that adds the settings of every stage."""
    options = type(stage.options)
    fields = [field for field in _STAGE_SETTINGS if field[0] not in options.__struct_fields__]
    own = {
        name: value for name, value in msgspec.structs.asdict(stage).items() if name in {field[0] for field in fields}
    }
    derived = msgspec.defstruct(options.__name__, fields, bases=(options,), module=__name__, frozen=True, kw_only=True)
    return derived(**msgspec.structs.asdict(stage.options), **own)


def _with_settings(stage: Stage, settings: msgspec.Struct) -> Stage:
    options = type(stage.options)
    fields = msgspec.structs.asdict(settings)
    own = {name: fields.pop(name) for name in list(fields) if name not in options.__struct_fields__}
    return msgspec.structs.replace(stage, options=options(**fields), **own)


def _configure_edges(
    edges: Sequence[Edge], layers: Sequence[SettingsLayer]
) -> tuple[tuple[Edge, ...], tuple[Setting, ...]]:
    before: dict[str, msgspec.Struct] = {
        edge.setting: EdgeSettings(connector=edge.connector, credit=edge.credit, pool_bytes=edge.pool_bytes)
        for edge in edges
    }
    own = [layer.only(EDGES).spread(EDGES) for layer in layers]
    for layer in own:
        for path in layer.values:
            if ".".join(path.split(".")[:2]) not in before:
                names = ", ".join(edge.setting for edge in edges) or "no edge: the pipeline has none"
                raise ConfigError(layer.name(path), "there is no such edge", f"use one of {names}")
    after, settings = overlay(before, own)
    configured = [msgspec.structs.replace(e, **msgspec.structs.asdict(after[e.setting])) for e in edges]
    return tuple(configured), settings
