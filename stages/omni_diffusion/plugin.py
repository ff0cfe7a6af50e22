"""Registers stage kind `"diffusion"`."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="diffusion", kind="omni_diffusion.kind:DiffusionStageKind")]
