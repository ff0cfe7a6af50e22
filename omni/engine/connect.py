"""Which connector carries an edge."""

from dataclasses import dataclass

from omni.pipeline import Edge


@dataclass(frozen=True, slots=True)
class ConnectorChoice:
    """A connector's registered name, and why it was chosen."""

    name: str
    why: str


def choose_connector(edge: Edge) -> ConnectorChoice:
    """Follows from where the edge's stages run: all of them run in this process, on one device."""
    return ConnectorChoice("local", "same process, same device")
