"""The route of a request's payloads with tensors to the user: as over an edge, into host memory.

| object | holds | until |
|---|---|---|
| `UserRoute` | payloads under way from its stage | they are copied into host memory |
| `StageOutput.tensors` | memory of its own | the user drops it |

The user takes every payload at once, so a route never pauses its producer for long.
"""

from collections import deque
from collections.abc import Callable, Mapping

import torch

from omni.connector import Receiver, Sender
from omni.device import COMPLETED
from omni.engine.credit import Credit
from omni.engine.host import in_slot
from omni.engine.produced import AUDIO, checked_rate
from omni.engine.request import SafeSink, StageOutput
from omni.engine.route import InRoute, OutRoute
from omni.engine.values import give
from omni.payload import AudioChunk
from omni.pipeline import Edge
from omni.pipeline.adapter import Adapter
from omni.stage import Ended, Feed, Inbound, Produced


class UserRoute:
    """Delivers one output of one request to the user. finished: whether all payloads were delivered. `on_finished` is called once,
    when they are."""

    def __init__(
        self,
        request_id: str,
        modality: str,
        edge: Edge,
        *,
        adapter: Adapter,
        ends: tuple[Sender, Receiver],
        credit: Credit,
        sink: SafeSink,
        on_finished: "Callable[[UserRoute], None]",
        on_sound: Callable[[AudioChunk], None] = lambda chunk: None,
        made_by: tuple[str, object] | None = None,
    ) -> None:
        """edge: `PipelineOutput.route`. credit: the producer's. on_sound: called with each chunk of sound that the user gets.
        made_by: the stage and the code that errors name; None for the edge and its adapter."""
        sender, receiver = ends
        self.request_id = request_id
        self.finished = False
        self.inbox: deque[Inbound] = deque()
        self._modality = modality
        self.edge = edge
        self._sink = sink
        self._on_finished = on_finished
        self._on_sound = on_sound
        self._source, self._code = made_by or (edge.name, adapter.push)
        self._rate: int | None = None
        self._in = InRoute(
            request_id, edge, adapter=adapter, receiver=receiver, consumer=self, on_busy=lambda route: None, leases={}
        )
        self._out = OutRoute(request_id, edge, sender=sender, credit=credit, consumer=self._in)
        self._in.producer = self._out

    @property
    def stage(self) -> str:
        return self.edge.producer

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to do, now or later."""
        return bool(self.inbox) or self._out.busy or self._in.busy

    def send(self, produced: Produced) -> None:
        """Sends a payload of the producer. Raises OmniError if the connector fails."""
        self._out.send(produced)

    def end(self, reason: str) -> None:
        """The producer is done."""
        self._out.end(reason)

    def tick(self) -> bool:
        """Gives the arrived payloads to the user. Raises OmniError if a payload is lost, or the adapter or the sink failed."""
        moved = self._out.tick() | self._in.tick()
        while self.inbox and self._take(self.inbox[0]):
            self.inbox.popleft()
            moved = True
        if self.finished:
            self._on_finished(self)
        return moved

    def abort(self, reason: str) -> None:
        """Gives up the payloads under way."""
        self._out.abort(reason)
        self._in.abort()
        for message in self.inbox:
            if isinstance(message, Feed):
                message.release(COMPLETED)
        self.inbox.clear()

    def _take(self, message: Inbound) -> bool:
        match message:
            case Feed():
                if not message.arrived:
                    return False
                tensors = _own(message.payload.tensors)
                message.release(COMPLETED)
                if self._modality == AUDIO:
                    self._rate = checked_rate(self._source, message.payload.meta, self._code, self._rate)
                output = StageOutput(self._modality, message.payload.meta, tensors)
                give(self._sink, output, self._source, self._code)
                if self._modality == AUDIO and isinstance(output.meta, AudioChunk):
                    self._on_sound(output.meta)
            case Ended():
                self.finished = True
        return True


def _own(tensors: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Tensors of a host edge that the receiver does not use again: copies of those in one of its slots."""
    given = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)}
    assert len(given) == len(tensors), "a host edge gathers page slices"
    if not in_slot(given.values()):
        return given
    return {name: tensor.clone() for name, tensor in given.items()}
