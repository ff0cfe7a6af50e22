"""The plugin's hooks, found by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import PipelineExtension, StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="scorer", kind="omni_scorer.kind:ScorerKind")]


@hookimpl
def omni_pipeline_extensions() -> list[PipelineExtension]:
    return [PipelineExtension(name="scorer", extend="omni_scorer.extension:extend")]
