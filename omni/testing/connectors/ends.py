"""The consumer's ends as a check sees them: in the calling thread, or in a second process."""

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Protocol

import torch

from omni.connector import Connector
from omni.device import Device
from omni.errors import ConfigError, OmniError
from omni.ipc import Channel, ChannelClosed, Codec, Undecodable
from omni.plugin import locate
from omni.testing.connectors.child import TURN_SECONDS
from omni.testing.connectors.consumer import Consumer
from omni.testing.connectors.messages import Command, Commands, EndReport, PieceOf, StartEnd, State, Turns
from omni.testing.connectors.promises import CONNECTOR

_BOOT = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from omni.testing.connectors.child import main\n"
    "main(int(sys.argv[1]))\n"
)


class End(Protocol):
    """The consumer's end of all edges of a check."""

    @property
    def busy(self) -> bool:
        """Whether a receiver is."""
        ...

    @property
    def states(self) -> Mapping[int, State]: ...

    def do(self, command: Command) -> None: ...

    def turn(self) -> bool:
        """One turn of the calling thread. Returns whether anything happened at the other end."""
        ...

    def rest(self) -> None:
        """Lets an idle moment pass."""
        ...

    def turns(self, count: int) -> Callable[[], bool]:
        """Requests turns. Returns whether they are over."""
        ...


_TURNS_WITHOUT_A_PAUSE = 100


class LocalEnd:
    """An end in the calling thread."""

    def __init__(self, connector: Connector, device: Device) -> None:
        self.consumer = Consumer(connector, device)
        self._left = 0
        self._rests = 0

    @property
    def busy(self) -> bool:
        return self.consumer.busy

    @property
    def states(self) -> Mapping[int, State]:
        return {number: taken.state for number, taken in self.consumer.taken.items()}

    def do(self, command: Command) -> None:
        self.consumer.do(command)

    def turn(self) -> bool:
        self._left -= 1
        self.consumer.turn()
        news = bool(self.consumer.changed)
        self.consumer.changed.clear()
        if news:
            self._rests = 0
        return news

    def rest(self) -> None:
        # Most connectors of one process have news within some turns. Others wait for a thread or a device.
        self._rests += 1
        time.sleep(0 if self._rests <= _TURNS_WITHOUT_A_PAUSE else TURN_SECONDS / 10)

    def turns(self, count: int) -> Callable[[], bool]:
        self._left = count
        return lambda: self._left <= 0


class RemoteEnd:
    """An end in a second process, which `kill` ends.

    pieces: that it has sent. addresses: of its senders.
    """

    def __init__(self, factory: str, device: Device) -> None:
        ours, theirs = Channel.pair()
        self._channel: Channel[Commands, EndReport] = Channel(ours, Codec(Commands), Codec(EndReport))
        paths = [path for path in sys.path if isinstance(path, str)]
        command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), json.dumps(paths)]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._commands: list[Command] = [StartEnd(factory, str(device.torch_device), torch.get_num_threads())]
        self._token = self._reached = 0
        self._alive = True
        self.states: dict[int, State] = {}
        self.pieces: list[PieceOf] = []
        self.addresses: dict[int, object] = {}
        self.busy = False
        self.started = False

    def do(self, command: Command) -> None:
        self._commands.append(command)

    def turn(self) -> bool:
        if not self._alive:
            return False
        try:
            if self._commands and self._channel.send(Commands(self._commands), block=False):
                self._commands = []
            return self._hear()
        except TypeError as error:
            raise CONNECTOR.error(f"pieces and addresses can be sent to another process ({error})") from error
        except Undecodable as error:
            raise CONNECTOR.error(f"pieces and addresses arrive in another process ({error})") from error
        except ChannelClosed:
            status = self._process.wait()
            raise CONNECTOR.error(f"no end's process ends (status {status})") from None

    def rest(self) -> None:
        if self._alive:
            select.select([self._channel.descriptor], [], [], TURN_SECONDS)
        else:
            time.sleep(TURN_SECONDS)

    def turns(self, count: int) -> Callable[[], bool]:
        self._token += 1
        wanted = self._token
        self.do(Turns(wanted, count))
        return lambda: self._reached >= wanted

    def kill(self) -> None:
        """Ends the process as the system does, at any point of its work. Idempotent."""
        self._alive = False
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _hear(self) -> bool:
        news = False
        while (received := self._channel.receive(block=False)) is not None:
            report = received[0]
            if report.broken:
                raise AssertionError(report.broken)
            self.started = news = True
            self.busy = report.busy
            self.states.update({state.number: state for state in report.states})
            self.pieces += report.pieces
            self.addresses.update({key: address.value for key, address in report.addresses.items()})
            self._reached = max(self._reached, report.token)
        return news


def path_of(factory: "Callable[[], Connector] | str") -> str:
    """The import path of a factory, for the second process. Raises ConfigError if it has none."""
    if isinstance(factory, str):
        return factory
    remedy = 'give a class or a function at the top of a module, or "module:attribute"; or check with processes=False'
    if not isinstance(factory, type | FunctionType):
        raise ConfigError("factory", f"a second process cannot import {factory!r}", remedy)
    path = f"{factory.__module__}:{factory.__qualname__}"
    try:
        same = factory.__module__ != "__main__" and locate(path, "factory") is factory
    except OmniError:
        same = False
    if not same:
        raise ConfigError("factory", f"a second process cannot import {path}", remedy)
    return path
