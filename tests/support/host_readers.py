"""Stages that read in host memory, few requests at a time: a host reader reads rows, and a token reader tokens, payloads without
tensors.

They touch no device: rows are read with numpy, once they have arrived.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from torch import Tensor

from omni.device import COMPLETED, Device
from omni.payload import GeneratedTokens, Payload
from omni.stage import Feed, PlainStage, Produced, StageContext
from tests.support.bounded_worker import BoundedWorker, Case


class HostReaderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """max_num_seqs: the most requests that run. payloads_per_read: of each request. every: it reads on every n-th tick only."""

    max_num_seqs: int = 4
    payloads_per_read: int = 2
    every: int = 1


Read = Callable[[Case[Feed], msgspec.Struct, Tensor | None], Sequence[msgspec.Struct]]
"""The output for the rows of a payload, None where it has none."""


class HostReaderWorker(BoundedWorker[Feed]):
    """tensor: the name of the rows in a payload."""

    def __init__(self, name: str, device: Device, options: HostReaderOptions, tensor: str, read: Read) -> None:
        super().__init__(name, options.max_num_seqs)
        self._options, self._tensor, self._read_rows = options, tensor, read
        self._observer = device.host_observer
        self._ticks = self._waits = 0

    def counters(self) -> Mapping[str, int]:
        """waits: looks at an input that was there before its copy was over."""
        return {"waits": self._waits}

    def feed(self, request: Case[Feed], message: Feed) -> None:
        request.inputs.append(message)

    def release(self, given: Feed) -> None:
        given.release(COMPLETED)

    def advance(self) -> bool:
        self._ticks += 1
        moved = self.start_requests()
        for case in list(self.requests.values()):
            if case.running and not case.paused and case.inputs:
                # Its ticks count as time, so a tick without a read is still progress.
                moved |= bool(self._ticks % self._options.every) or self._read(case)
        return self.finish_read() or moved

    def _read(self, case: Case[Feed]) -> bool:
        for count in range(self._options.payloads_per_read):
            if not case.inputs:
                return count > 0
            if not case.inputs[0].arrived:
                self._waits += 1
                return count > 0
            self._give(case, case.inputs.popleft())
        return True

    def _give(self, case: Case[Feed], message: Feed) -> None:
        rows = message.payload.tensors.get(self._tensor)
        assert isinstance(rows, Tensor | None)
        assert rows is None or rows.device.type == "cpu"
        if self._observer is not None and rows is not None:
            self._observer.host_reads(rows)
        for meta in self._read_rows(case, message.payload.meta, rows):
            case.read += 1
            self.outbox.append(Produced(case.id, Payload(meta), COMPLETED))
        message.release(COMPLETED)


class TokensOnly:
    """The adapter: tokens go on, hidden states do not."""

    def __init__(self, args: object = None) -> None:
        pass

    def push(self, payload: Payload) -> Sequence[Payload]:
        return (payload,) if isinstance(payload.meta, GeneratedTokens) else ()

    def finish(self, reason: str) -> Sequence[Payload]:
        return ()


class TokenReaderWorker(HostReaderWorker):
    """most_unread: the most inputs that one request had here."""

    def __init__(self, context: StageContext, options: HostReaderOptions) -> None:
        super().__init__(context.stage.name, context.device, options, "", lambda case, meta, rows: ())
        self.most_unread = 0

    def counters(self) -> Mapping[str, int]:
        return {**super().counters(), "most_unread": self.most_unread}

    def feed(self, request: Case[Feed], message: Feed) -> None:
        super().feed(request, message)
        self.most_unread = max(self.most_unread, len(request.inputs))

    def _give(self, case: Case[Feed], message: Feed) -> None:
        assert not message.payload.tensors
        case.read += 1
        self.outbox.append(Produced(case.id, message.payload, COMPLETED))
        message.release(COMPLETED)


class TokenReaderKind:
    """Has no model."""

    name = "token_reader"
    options = HostReaderOptions

    def load(self, context: StageContext) -> PlainStage:
        assert isinstance(context.options, HostReaderOptions)
        return PlainStage(TokenReaderWorker(context, context.options))
