"""Registers stage kind `"encoder"`."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="encoder", kind="omni_encoder.kind:EncoderStageKind")]
