"""Registers stage kind `"ar"` and its drafters."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import DrafterEntry, StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="ar", kind="omni_ar.kind:ArStageKind")]


@hookimpl
def omni_drafters() -> list[DrafterEntry]:
    return [
        DrafterEntry(name="ngram", drafter="omni_ar.drafters.ngram:NgramDrafter"),
        DrafterEntry(name="fabricated", drafter="omni_ar.drafters.fabricated:FabricatedDrafter"),
        DrafterEntry(name="eagle3", drafter="omni_ar.drafters.eagle3:Eagle3Drafter"),
        DrafterEntry(name="mtp", drafter="omni_ar.drafters.mtp:MtpDrafter"),
    ]
