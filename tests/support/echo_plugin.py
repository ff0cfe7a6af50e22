"""A plugin with a model family that echoes its prompt, letter by letter, as text and sound: see `support.echo_family`."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint

from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily, StageKindEntry

POINT = EntryPoint("echo", "tests.support.echo_plugin", "omni")
_REST = "tests.support.echo_family"


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [
        ModelFamily(name="echo", model_types=("echo",), pipeline=f"{_REST}:pipeline", tiny=f"{_REST}:write_checkpoint")
    ]


@hookimpl
def omni_stage_kinds() -> Sequence[StageKindEntry]:
    return [
        StageKindEntry(name="echo", kind=f"{_REST}:EchoKind"),
        StageKindEntry(name="tone", kind=f"{_REST}:ToneKind"),
    ]
