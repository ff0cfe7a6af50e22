"""Registers the connector `"cuda_ipc"`."""

from collections.abc import Sequence

from omni.hookspecs import hookimpl
from omni.plugin.entries import ConnectorEntry


@hookimpl
def omni_connectors() -> Sequence[ConnectorEntry]:
    return [ConnectorEntry(name="cuda_ipc", connector="omni_cuda_ipc.connector:CudaIpcConnector")]
