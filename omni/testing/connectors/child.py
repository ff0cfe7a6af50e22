"""The second process of a check: it takes commands for a consumer, and sends payloads of its own if asked."""

import os
import select
import socket

import torch

from omni.connector import Connector
from omni.device import open_device
from omni.ipc import Channel, ChannelClosed, Codec
from omni.plugin import locate
from omni.testing.connectors.consumer import Consumer
from omni.testing.connectors.messages import (
    Commands,
    EndReport,
    OpenSender,
    PieceOf,
    SendPayload,
    StartEnd,
    Turns,
    typed,
)
from omni.testing.connectors.producer import Producer
from omni.testing.connectors.promises import Gate

TURN_SECONDS = 0.001
"""Seconds between two turns without a message."""


def main(descriptor: int) -> None:
    """descriptor: the socket to the checking process. Exits the interpreter."""
    channel: Channel[EndReport, Commands] = Channel(socket.socket(fileno=descriptor), Codec(EndReport), Codec(Commands))
    try:
        _serve(channel)
    except ChannelClosed:
        pass
    except BaseException as error:
        text = str(error) if isinstance(error, AssertionError) else f"the second process failed: {error!r}"
        channel.send(EndReport(broken=text))
    os._exit(0)


def _serve(channel: "Channel[EndReport, Commands]") -> None:
    received = channel.receive()
    assert received is not None
    start, *commands = received[0].each
    assert isinstance(start, StartEnd)
    torch.set_num_threads(start.threads)
    end = _End(start)
    end.turn(Commands(commands))
    channel.send(EndReport())
    while True:
        select.select([channel.descriptor], [], [], 0 if end.moved else TURN_SECONDS)
        received = channel.receive(block=False)
        end.turn(received[0] if received is not None else Commands([]))
        if end.news and channel.send(end.report, block=False):
            end.heard()


class _End:
    """report: facts that the checking process does not know. moved: whether the last turn made progress."""

    def __init__(self, start: StartEnd) -> None:
        device = open_device(start.device)
        factory = locate(start.factory, "connector")
        assert callable(factory)
        connector: Connector = factory()
        self.report = EndReport()
        self.moved = False
        self._consumer = Consumer(connector, device)
        self._producer = Producer(connector, device)
        self._turns: tuple[int, int] | None = None
        self._busy = False

    @property
    def news(self) -> bool:
        report = self.report
        self.report.states = list(self._consumer.changed.values())
        self.report.busy = self._consumer.busy
        return bool(report.states or report.token or report.addresses or report.pieces or report.busy is not self._busy)

    def heard(self) -> None:
        self._busy = self.report.busy
        self.report = EndReport()
        self._consumer.changed.clear()

    def turn(self, commands: Commands) -> None:
        for command in commands.each:
            match command:
                case Turns():
                    self._turns = command.token, command.count
                case OpenSender():
                    address = self._producer.open(command.key, command.edge)
                    self.report.addresses[command.key] = typed(address)
                case SendPayload():
                    self._producer.send(command.key, command.meta, None if command.ready else Gate())
                case _:
                    self._consumer.do(command)
        pieces = [PieceOf(sent.number, typed(piece)) for sent, piece in self._producer.turn()]
        self.report.pieces += pieces
        self._consumer.turn()
        self.moved = bool(commands.each or pieces)
        if self._turns is not None:
            token, count = self._turns
            self._turns = (token, count - 1) if count else None
            if not count:
                self.report.token = token
