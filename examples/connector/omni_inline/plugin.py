"""The plugin's hooks, found by entry point."""

from omni import hookimpl
from omni.plugin import ConnectorEntry


@hookimpl
def omni_connectors() -> list[ConnectorEntry]:
    return [ConnectorEntry(name="inline", connector="omni_inline.connector:InlineConnector")]
