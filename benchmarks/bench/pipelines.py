"""Parts of families' pipelines, as benchmarks run them: some stages, their own options, weights that are made once."""

from collections.abc import Mapping

import msgspec

from bench.emit import THINKER
from bench.gather import GatherOptions
from bench.plugin import bench_plugins
from bench.weights import shared
from omni.checkpoint import Checkpoint
from omni.engine import resolve_pipeline
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni_ar.options import ArOptions

WRITER, READER, ROWS = "writer", "reader", "rows"
TALKER, SINK = "talker", "sink"


def family_pipeline(checkpoint: Checkpoint) -> Pipeline:
    """The checkpoint's own."""
    return resolve_pipeline(checkpoint, bench_plugins()).pipeline


def with_options(stage: Stage, **options: object) -> Stage:
    """The stage with these options changed, on shared weights."""
    changed = msgspec.structs.replace(stage.options, **options)
    return msgspec.structs.replace(stage, options=changed, model=shared(stage))


def one_stage(pipeline: Pipeline, name: str, **options: object) -> Pipeline:
    """The stage `name`, with these options changed, and its text."""
    return Pipeline(
        family=pipeline.family,
        stages=(with_options(pipeline.stage(name), **options),),
        outputs=(PipelineOutput(modality="text", stage=name),),
        frontend=pipeline.frontend,
    )


def emitting(pipeline: Pipeline, width: int, *, emits: bool, **options: object) -> Pipeline:
    """`writer`, on the thinker's weights; with `emits`, its tokens' hidden states of `width` go to `reader`, which gathers each."""
    thinker = pipeline.stage(THINKER)
    shared(thinker)
    assert isinstance(thinker.options, ArOptions)
    writer = Stage(
        name=WRITER,
        kind="ar",
        model="bench.emit:build_emitting" if emits else "bench.emit:build_silent",
        options=msgspec.structs.replace(thinker.options, **options),
    )
    text = PipelineOutput(modality="text", stage=WRITER)
    if not emits:
        return Pipeline(family="emit", stages=(writer,), outputs=(text,), frontend="bench.emit:none")
    reader = _gather(READER, GatherOptions(width=width))
    return Pipeline(
        family="emit",
        stages=(writer, reader),
        edges=(Edge(producer=WRITER, consumer=READER, adapter="bench.emit:ReaderAdapter"),),
        outputs=(text, PipelineOutput(modality=ROWS, stage=READER)),
        frontend="bench.emit:none",
    )


def thinker_and_talker(
    pipeline: Pipeline, groups: int, options: Mapping[str, Mapping[str, object]], *, joined: bool, priority: int = -1
) -> Pipeline:
    """A pipeline of both, and of `sink`, which gathers the talker's frames of `groups` codes in the vocoder's place.

    options: of the two, by stage. joined: whether the thinker feeds the talker, or the front end does. priority: of the talker.
    """
    thinker = with_options(pipeline.stage(THINKER), **options[THINKER])
    talker = msgspec.structs.replace(with_options(pipeline.stage(TALKER), **options[TALKER]), priority=priority)
    frames = Edge(producer=TALKER, consumer=SINK, adapter="bench.frames:FramesOnly")
    between = tuple(edge for edge in pipeline.edges if (edge.producer, edge.consumer) == (THINKER, TALKER))
    return Pipeline(
        family=pipeline.family,
        stages=(thinker, talker, _gather(SINK, GatherOptions(width=groups, integers=True))),
        edges=(*(between if joined else ()), frames),
        outputs=(PipelineOutput(modality="text", stage=THINKER), PipelineOutput(modality=ROWS, stage=SINK)),
        frontend=pipeline.frontend,
    )


def talker_alone(pipeline: Pipeline, groups: int, *, priority: int = -1, **options: object) -> Pipeline:
    """The talker and `sink`, as in `thinker_and_talker` when they are not joined."""
    talker = msgspec.structs.replace(with_options(pipeline.stage(TALKER), **options), priority=priority)
    return Pipeline(
        family=pipeline.family,
        stages=(talker, _gather(SINK, GatherOptions(width=groups, integers=True))),
        edges=(Edge(producer=TALKER, consumer=SINK, adapter="bench.frames:FramesOnly"),),
        outputs=(PipelineOutput(modality=ROWS, stage=SINK),),
        frontend=pipeline.frontend,
    )


def _gather(name: str, options: GatherOptions) -> Stage:
    return Stage(name=name, kind="gather", model="bench.gather:GatherKind", options=options)
