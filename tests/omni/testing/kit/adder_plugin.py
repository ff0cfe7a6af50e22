"""Registers the adder."""

from omni.hookspecs import hookimpl
from omni.plugin.entries import StageKindEntry


@hookimpl
def omni_stage_kinds() -> list[StageKindEntry]:
    return [StageKindEntry(name="adder", kind="tests.omni.testing.kit.adder:AdderKind")]
