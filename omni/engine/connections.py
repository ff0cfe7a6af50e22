"""Connections of an engine to the engines on other places, from the first message to the end."""

from omni.engine.peer_messages import Hello
from omni.engine.peers import EdgeEnds
from omni.engine.request import ConnectPeer
from omni.errors import OmniError, StageError


class PeerConnections:
    """Opens and closes the ends of edges to other engines, and reports both."""

    def __init__(self, ends: EdgeEnds) -> None:
        self._ends = ends
        self._connecting: dict[str, ConnectPeer] = {}
        """By place, until the engine there has said hello."""
        self._connected: dict[str, ConnectPeer] = {}

    def connect(self, command: ConnectPeer) -> None:
        """Sends the hello to an engine. `lose` comes first if an engine on the same place has ended."""
        self._connecting[command.place] = command
        try:
            self._ends.connect(command.place, command.link)
        except OmniError as error:
            self._ends.lose(command.place)
            self._connecting.pop(command.place).on_connected(error)

    def greet(self, place: str, hello: Hello) -> None:
        """Opens the receivers of the other engine's senders."""
        connecting = self._connecting.pop(place)
        try:
            self._ends.greet(place, hello)
        except OmniError as error:
            connecting.on_connected(error)
        else:
            self._connected[place] = connecting
            connecting.on_connected(None)

    def lose(self, place: str) -> None:
        """Closes the ends to the engine on a place. A no-op without one."""
        self._ends.lose(place)
        if place in self._connecting:
            error = StageError("engine", "connecting", f"the engine on {place} has ended")
            self._connecting.pop(place).on_connected(error)
        if place in self._connected:
            self._connected.pop(place).on_lost()
