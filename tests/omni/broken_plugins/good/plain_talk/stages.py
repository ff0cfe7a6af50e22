"""The two stage kinds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from omni.device import COMPLETED
from omni.payload import AudioChunk, GeneratedTokens, Payload
from omni.stage import Feed, MailboxWorker, Open, PlainStage, Produced, StageContext


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class Model:
    """A model without weights."""

    def samples(self, letters: str) -> np.ndarray:
        return np.full(80 * len(letters), 0.5, np.float32)


def build(context: StageContext) -> Model:
    return Model()


@dataclass
class Record:
    id: str
    letters: list[str] = field(default_factory=list)
    ended: bool = False


class Worker(MailboxWorker[Record]):
    """The common part of the two. A tick takes one letter."""

    def __init__(self, name: str, model: Model) -> None:
        super().__init__(name)
        self.model = model

    def open(self, message: Open) -> Record:
        return Record(message.request_id)

    def feed(self, request: Record, message: Feed) -> None:
        meta = message.payload.meta
        if isinstance(meta, GeneratedTokens):
            request.letters += map(chr, meta.ids)
        if isinstance(meta, Line):
            request.letters += meta.text
        message.release(COMPLETED)

    def end(self, request: Record, source: str) -> None:
        request.ended = True

    def pause(self, request: Record) -> None:
        pass

    def resume(self, request: Record) -> None:
        pass

    def drop(self, request: Record) -> None:
        request.letters.clear()

    def advance(self) -> bool:
        for request in list(self.requests.values()):
            if request.letters:
                self.outbox.append(Produced(request.id, self.made(request.letters.pop(0)), COMPLETED))
            elif request.ended:
                self.finish(request.id, "stop", {"letters": 0})
        return bool(self.requests)

    def made(self, letter: str) -> Payload:
        raise NotImplementedError

    def usage(self) -> Mapping[str, int]:
        return {"requests": len(self.requests)}

    def counters(self) -> Mapping[str, int]:
        return {"retries": self.retries}


class Writer(Worker):
    def made(self, letter: str) -> Payload:
        return Payload(GeneratedTokens(ids=(ord(letter),)))


class Singer(Worker):
    def made(self, letter: str) -> Payload:
        return Payload(AudioChunk(samples=self.model.samples(letter), sample_rate=8000))


class WriterKind:
    name = "write"
    options = Options

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(Writer(context.stage.name, build(context)))


class SingerKind:
    name = "sing"
    options = Options

    def load(self, context: StageContext) -> PlainStage:
        return PlainStage(Singer(context.stage.name, build(context)))
