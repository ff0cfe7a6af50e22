"""Faults of a connector: when its ends are opened, when payloads travel, and those that leave its memory unknown."""

from typing import Literal

from omni.errors import OmniError, PluginError, StageError
from tests.omni.broken_plugins.fault import Fault

_EDGE = "stage 'writer->singer' failed while "
_SEND = "    def send(self, payload: Payload, ready: Event) -> Ref:\n"
_PIECES = "    def pieces(self) -> Sequence[object]:\n"
_RECEIVE = "    def receive(self, piece: object) -> Pending:\n"
_POLL = "    def poll(self) -> Received | None:\n"
_TICK = "    def tick(self) -> None:\n"
_BUSY = "    @property\n    def busy(self) -> bool:\n"
_RELEASE = "    def release(self, after: Event) -> None:\n"
_ABORT = "    def abort(self) -> None:\n"
_DISCARD = "    def discard(self, piece: object) -> None:\n"
_SERVES = "    def serves(self, producer: torch.device, consumer: torch.device) -> bool:\n"
_SENDER = "    def sender(self, end: EdgeEnd) -> Sender:\n"
_RECEIVER = "    def receiver(self, end: EdgeEnd, address: object) -> Receiver:\n"
_LAST = "payload.meta.ids == (33,)"
"""Whether the payload is that of the last letter of `break!`."""


def _fault(
    at: Literal["open", "request", "stage"], kind: type[OmniError], name: str, old: str, new: str, *says: str
) -> Fault:
    closed = "singer" if at == "stage" else ""
    return Fault(name, at, kind, "connector.py", old, new, says, closed=closed)


def _travel(name: str, old: str, new: str, *says: str) -> Fault:
    return _fault("request", StageError, name, old, new, *says)


def _unknown(name: str, old: str, new: str, *says: str) -> Fault:
    return _fault("stage", StageError, name, old, new, *says)


def _opening(name: str, old: str, new: str, *says: str) -> Fault:
    return _fault("open", PluginError, name, old, new, *says)


_SENDING, _RECEIVING = f"{_EDGE}sending a payload: ", f"{_EDGE}receiving a payload: "
_FIELD = "edges.writer-singer.connector: "
_OTHER = "correct the connector, or choose another one for the edge"

TRAVEL = (
    _travel(
        "a send that raises",
        _SEND,
        f"{_SEND}        if {_LAST}:  # !\n            raise KeyError('wire')  # here\n",
        f"{_SENDING}KeyError: 'wire'",
    ),
    _travel(
        "a send that exits",
        _SEND,
        f"{_SEND}        if {_LAST}:  # !\n            raise SystemExit(3)  # here\n",
        f"{_SENDING}SystemExit: 3",
    ),
    _travel(
        "a send that returns None",
        _SEND,
        f"    def send(self, payload, ready):  # here\n        if {_LAST}:  # !\n            return None\n",
        f"{_SENDING}send returned None: return a Ref",
    ),
    _travel(
        "a send that returns the payload",
        _SEND,
        f"    def send(self, payload, ready):  # here\n        if {_LAST}:  # !\n            return payload\n",
        f"{_SENDING}send returned a Payload without abort, freed, pieces, released, sent: return a Ref",
    ),
    _travel(
        "a send that takes nothing",
        _SEND,
        "    def send(self) -> Ref:  # here\n",
        f"{_SENDING}TypeError: WireSender.send() takes 1 positional argument",
    ),
    _travel(
        "pieces that raise",
        _PIECES,
        f"{_PIECES}        raise OSError('cut')  # here\n",
        f"{_SENDING}OSError: cut",
    ),
    _travel(
        "pieces that are a number",
        _PIECES,
        "    def pieces(self):  # here\n        return 1\n",
        f"{_SENDING}pieces returned a int: return a sequence, often an empty one",
    ),
    _travel(
        "pieces that are text",
        _PIECES,
        "    def pieces(self):  # here\n        return 'wire'\n",
        f"{_SENDING}pieces returned a str: return a sequence, often an empty one",
    ),
    _travel(
        "a sequence of pieces that raises",
        _PIECES,
        "    def __len__(self):\n        return 1\n\n"
        "    def __getitem__(self, index):\n        raise OSError('cut')  # here\n\n"
        "    def pieces(self):\n        from collections.abc import Sequence\n\n"
        "        Sequence.register(WireRef)\n        return self\n\n    def unused(self):\n",
        f"{_SENDING}OSError: cut",
    ),
    _travel(
        "a receive that raises",
        _RECEIVE,
        f"{_RECEIVE}        raise OSError('cut')  # here\n",
        f"{_RECEIVING}OSError: cut",
    ),
    _travel(
        "a receive that returns None",
        _RECEIVE,
        "    def receive(self, piece):  # here\n        return None\n",
        f"{_RECEIVING}receive returned None: return a Pending",
    ),
    _travel(
        "a receive that returns its piece",
        _RECEIVE,
        "    def receive(self, piece):  # here\n        return piece\n",
        f"{_RECEIVING}receive returned a WireRef without add, poll, release: return a Pending",
    ),
    _travel(
        "a poll that raises",
        _POLL,
        f"{_POLL}        return self.ref.recieved  # here\n",
        f"{_RECEIVING}AttributeError: 'WireRef' object has no attribute 'recieved'",
    ),
    _travel(
        "a poll that exits",
        _POLL,
        f"{_POLL}        raise SystemExit(3)  # here\n",
        f"{_RECEIVING}SystemExit: 3",
    ),
    _travel(
        "a poll that returns the payload",
        _POLL,
        "    def poll(self):  # here\n        return self.ref.received.payload\n",
        f"{_RECEIVING}poll returned a Payload: return a Received, or None before it has arrived",
    ),
    _travel(
        "a poll whose payload is its struct",
        _POLL,
        "    def poll(self):  # here\n        return Received(self.ref.received.payload.meta, COMPLETED)\n",
        f"{_RECEIVING}poll returned a Received with a GeneratedTokens as payload: give a Payload",
    ),
    _travel(
        "a poll whose payload has no meta",
        _POLL,
        "    def poll(self):  # here\n        return Received(Payload(None), COMPLETED)\n",
        f"{_RECEIVING}poll returned a payload with None as meta: give the struct that was sent",
    ),
    _travel(
        "a poll whose event is None",
        _POLL,
        "    def poll(self):  # here\n        return Received(self.ref.received.payload, None)\n",
        f"{_RECEIVING}poll returned a Received with None as ready: give an Event",
    ),
    _travel(
        "a poll whose tensor is a list",
        _POLL,
        "    def poll(self):  # here\n"
        "        return Received(Payload(self.ref.received.payload.meta, {'rows': [1.0]}), COMPLETED)\n",
        f"{_RECEIVING}poll returned a payload whose tensor 'rows' is a list: give a Tensor",
    ),
)
"""The request whose payload it is fails, and no other."""

UNKNOWN = (
    _unknown(
        "a tick that raises",
        _TICK,
        f"{_TICK}        1 / 0  # here\n",
        f"{_EDGE}ticking its receiver: ZeroDivisionError",
    ),
    _unknown(
        "a tick that exits",
        _TICK,
        f"{_TICK}        raise SystemExit(3)  # here\n",
        f"{_EDGE}ticking its receiver: SystemExit: 3",
    ),
    _unknown(
        "a busy that raises",
        _BUSY,
        f"{_BUSY}        if self.over:\n            raise KeyError('over')  # here\n",
        f"{_EDGE}asking whether its receiver is busy: KeyError: 'over'",
    ),
    _unknown(
        "a release that raises",
        _RELEASE,
        f"{_RELEASE}        raise OSError('stuck')  # here\n",
        f"{_EDGE}releasing a payload: OSError: stuck",
    ),
    _unknown(
        "an abort that raises after a poll",
        _ABORT,
        f"    def poll(self):\n        raise OSError('cut')  # here\n\n{_ABORT}        raise OSError('stuck')\n",
        f"{_RECEIVING}OSError: cut",
    ),
    _unknown(
        "a discard that raises after a receive",
        _DISCARD,
        "    def receive(self, piece):\n        raise OSError('cut')  # here\n\n"
        f"{_DISCARD}        raise OSError('stuck')\n",
        f"{_RECEIVING}OSError: cut",
    ),
)
"""The stage at the consumer's end is closed, and requests that do not need it go on."""

OPENING = (
    _opening(
        "a sender that raises",
        _SENDER,
        f"{_SENDER}        raise OSError('no wire')  # here\n",
        f"{_FIELD}opening the sender of edge 'writer->singer' failed: OSError: no wire",
        _OTHER,
    ),
    _opening(
        "a sender that is None",
        _SENDER,
        "    def sender(self, end):  # here\n        return None\n",
        f"{_FIELD}opening the sender of edge 'writer->singer' failed: sender returned None: return a Sender",
        _OTHER,
    ),
    _opening(
        "a receiver that exits",
        _RECEIVER,
        f"{_RECEIVER}        raise SystemExit(3)  # here\n",
        f"{_FIELD}opening the receiver of edge 'writer->singer' failed: SystemExit: 3",
        _OTHER,
    ),
    _opening(
        "a receiver that is a sender",
        _RECEIVER,
        "    def receiver(self, end, address):  # here\n        return WireSender()\n",
        "receiver returned a WireSender without busy, discard, receive, tick: return a Receiver",
        _OTHER,
    ),
    _opening(
        "a receiver whose busy is a method",
        f"class WireReceiver:\n    def __init__(self) -> None:\n        self.over: list[WireRef] = []\n\n{_BUSY}",
        "class WireReceiver:  # here\n    def __init__(self) -> None:\n        self.over: list[WireRef] = []\n\n"
        "    def busy(self) -> bool:\n",
        "WireReceiver.busy is a method: make it a property that gives True or False",
        _OTHER,
    ),
    _opening(
        "a serves that raises",
        _SERVES,
        f"{_SERVES}        raise KeyError(producer)  # here\n",
        "connectors.wire.serves: KeyError",
        _OTHER,
    ),
    _opening(
        "a serves that returns None",
        _SERVES,
        "    def serves(self, producer, consumer):  # here\n        pass\n\n    def served(self, producer, consumer):\n",
        "connectors.wire.serves: gave None",
        "return a bool",
    ),
    _opening(
        "a reach that is text",
        "class WireConnector:\n    reach = Reach.PROCESS\n",
        "class WireConnector:  # here\n    reach = 'process'\n",
        "connectors.wire.reach: gave a str",
        "return an omni.connector.base.Reach",
    ),
)
"""The model is not opened."""
