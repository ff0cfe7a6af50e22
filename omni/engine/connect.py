"""The connector of an edge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from omni.connector import Connector
from omni.device import Device
from omni.engine.host import HostConnector
from omni.pipeline import Edge
from omni.plugin import locate
from omni.plugin.manager import Plugins


@dataclass(frozen=True, slots=True)
class ConnectorChoice:
    """A connector's registered name, and the reason for it."""

    name: str
    why: str


def choose_connector(edge: Edge) -> ConnectorChoice:
    """The connector for the places of the edge's stages, at present always one process and one device."""
    return ConnectorChoice("local", "same process, same device")


def open_connector(edge: Edge, plugins: Plugins, device: Device) -> Connector:
    """Opens the edge's connector, which delivers payloads in the memory that its consumer needs. Raises PluginError."""
    name = choose_connector(edge).name
    connector = cast(Callable[[], Connector], locate(plugins.connectors[name].connector, f"connectors.{name}"))()
    return connector if edge.memory == "device" else HostConnector(connector, device, edge.name)
