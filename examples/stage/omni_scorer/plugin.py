"""What omni finds by entry point. Imports no torch."""

from omni import hookimpl
from omni.plugin import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="scorer", kind="omni_scorer.kind:ScorerKind")]
