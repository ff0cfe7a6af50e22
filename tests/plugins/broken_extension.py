"""A plugin whose extensions fail."""

import msgspec

from omni import hookimpl
from omni.pipeline import Pipeline
from omni.plugin import PipelineExtension


def broken(pipeline: Pipeline) -> Pipeline:
    return pipeline.extended(edges=[pipeline.edge("nobody", "thinker")])


def renaming(pipeline: Pipeline) -> Pipeline:
    return msgspec.structs.replace(pipeline, family="qwen2_5_omni")


def deep(pipeline: Pipeline) -> Pipeline:
    thinker = pipeline.stage("thinker")
    options = msgspec.structs.replace(thinker.options, hidden_layers=(99,))
    return pipeline.extended(stages=[msgspec.structs.replace(thinker, options=options)])


@hookimpl
def omni_pipeline_extensions() -> list[PipelineExtension]:
    return [
        PipelineExtension(name="broken", extend=f"{__name__}:broken"),
        PipelineExtension(name="deep", extend=f"{__name__}:deep"),
        PipelineExtension(name="renaming", extend=f"{__name__}:renaming"),
    ]
