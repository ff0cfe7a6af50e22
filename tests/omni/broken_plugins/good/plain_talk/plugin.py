"""The plugin's hooks, found by entry point."""

from collections.abc import Sequence

from omni import hookimpl
from omni.plugin import ConnectorEntry, ModelFamily, StageKindEntry


@hookimpl
def omni_model_families() -> Sequence[ModelFamily]:
    return [ModelFamily(name="talk", model_types=("talk",), pipeline="plain_talk.pipeline:pipeline")]


@hookimpl
def omni_connectors() -> Sequence[ConnectorEntry]:
    return [ConnectorEntry(name="wire", connector="plain_talk.connector:WireConnector")]


@hookimpl
def omni_stage_kinds() -> Sequence[StageKindEntry]:
    return [
        StageKindEntry(name="write", kind="plain_talk.stages:WriterKind"),
        StageKindEntry(name="sing", kind="plain_talk.stages:SingerKind"),
    ]
