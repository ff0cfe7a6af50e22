"""A plugin whose extension fails."""

from omni import hookimpl
from omni.pipeline import Pipeline
from omni.plugin import PipelineExtension


def broken(pipeline: Pipeline) -> Pipeline:
    return pipeline.extended(edges=[pipeline.edge("nobody", "thinker")])


@hookimpl
def omni_pipeline_extensions() -> list[PipelineExtension]:
    return [PipelineExtension(name="broken", extend=f"{__name__}:broken")]
