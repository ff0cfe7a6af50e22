"""The plugin's hooks, found by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import PipelineExtension, StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [
        StageKindEntry(name="quiet", kind="omni_moods.quiet:QuietKind"),
        StageKindEntry(name="mood", kind="omni_moods.mood:MoodKind"),
    ]


@hookimpl
def omni_pipeline_extensions() -> list[PipelineExtension]:
    return [
        PipelineExtension(name="quiet", extend="omni_moods.extension:quiet"),
        PipelineExtension(
            name="mood",
            extend="omni_moods.extension:mood",
            families=("qwen3_omni", "qwen2_5_omni"),
        ),
    ]
