"""A plugin with a model family whose writer is cut across engines: see `support.ranked_family`."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint

from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily, StageKindEntry

POINT = EntryPoint("ranked", "tests.support.ranked_plugin", "omni")
_REST = "tests.support.ranked_family"


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [ModelFamily(name="ranked", model_types=("ranked",), pipeline=f"{_REST}:pipeline")]


@hookimpl
def omni_stage_kinds() -> Sequence[StageKindEntry]:
    return [
        StageKindEntry(name="adder", kind=f"{_REST}:AdderKind"),
        StageKindEntry(name="tone", kind="tests.support.echo_family:ToneKind"),
    ]
