"""Registers the connector `"local"`."""

from collections.abc import Sequence

from omni.hookspecs import hookimpl
from omni.plugin.entries import ConnectorEntry


@hookimpl
def omni_connectors() -> Sequence[ConnectorEntry]:
    return [ConnectorEntry(name="local", connector="omni_local.connector:LocalConnector")]
