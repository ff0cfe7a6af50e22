"""Registers the connector `"shm"`."""

from collections.abc import Sequence

from omni.hookspecs import hookimpl
from omni.plugin.entries import ConnectorEntry


@hookimpl
def omni_connectors() -> Sequence[ConnectorEntry]:
    return [ConnectorEntry(name="shm", connector="omni_shm.connector:SharedMemoryConnector")]
