"""Registers stage kind `"ar"`."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="ar", kind="omni_ar.kind:ArStageKind")]
