"""Registers stage kind `"vocoder"`."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="vocoder", kind="omni_vocoder.kind:VocoderStageKind")]
