"""The model family of `support.ranked_plugin`: `writer` gives for each character of the prompt the sum of what its ranks make of
it, `singer` sings that. A rank multiplies the character's number by its own, counted from 1: `added` is what two ranks write.
"""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import torch

from omni.checkpoint import Checkpoint
from omni.device import COMPLETED
from omni.errors import LostRankError
from omni.parallel import Ranks
from omni.payload import GeneratedTokens, Payload
from omni.pipeline import Edge, Pipeline, PipelineOutput, Stage
from omni.plugin.manager import Plugins, load_plugins
from omni.sampling import SamplingParams
from omni.stage import Feed, Footprint, MailboxWorker, Open, Produced, StageContext, StageUsage
from tests.support.echo_family import EchoOptions, Prompt
from tests.support.entry_points import own_entry_points
from tests.support.ranked_plugin import POINT

BREAK_FOLLOWERS = "\x18"
"""The workers of ranks above 0 fail at this character."""
BREAK_LEADER = "\x19"
"""That of rank 0 does."""
STOP_FOLLOWER = "\x1a"
"""At this character the process of rank 1 is stopped, and rank 0 notices that a step hangs."""


class AdderOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fails_on: the rank whose loading fails. pages: the most that rank 0 can use; each further rank has one less."""

    fails_on: int | None = None
    pages: int = 8
    sampling: SamplingParams = SamplingParams()


def pipeline(checkpoint: Checkpoint) -> Pipeline:
    return Pipeline(
        family="ranked",
        stages=(
            Stage(name="writer", kind="adder", options=AdderOptions()),
            Stage(name="singer", kind="tone", options=EchoOptions()),
        ),
        edges=(Edge(producer="writer", consumer="singer"),),
        outputs=(PipelineOutput(modality="text", stage="writer"), PipelineOutput(modality="audio", stage="singer")),
        frontend="tests.support.echo_family:EchoFrontend",
    )


@cache
def ranked_plugins() -> Plugins:
    return load_plugins([POINT, *own_entry_points("local", "shm")])


def ranked_model(directory: Path) -> Path:
    """A checkpoint folder."""
    (directory / "config.json").write_text(json.dumps({"model_type": "ranked", "speaks": True}))
    return directory


def added(text: str, ranks: int = 2) -> str:
    """The writer's text for a prompt."""
    return "".join(chr(ord(letter) * ranks * (ranks + 1) // 2) for letter in text)


def _add(ranks: Ranks | None, number: int) -> int:
    if ranks is None:
        return number
    return _exchange(ranks, number * (ranks.rank + 1))


def _exchange(ranks: Ranks, part: int) -> int:
    return int(ranks.communicator.all_reduce(torch.tensor([part])))


@dataclass(slots=True)
class _Sum:
    id: str
    sampling: SamplingParams
    ids: tuple[int, ...] = ()
    written: int = 0


class AdderWorker(MailboxWorker[_Sum]):
    """Of rank 0, or of a whole stage."""

    def __init__(self, ranks: Ranks | None, pages: int) -> None:
        super().__init__("writer")
        self._ranks = ranks
        self._pages = pages

    def open(self, message: Open) -> _Sum:
        return _Sum(message.request_id, message.sampling)

    def feed(self, request: _Sum, message: Feed) -> None:
        assert isinstance(message.payload.meta, Prompt)
        request.ids = message.payload.meta.ids

    def end(self, request: _Sum, source: str) -> None: ...

    def pause(self, request: _Sum) -> None: ...

    def resume(self, request: _Sum) -> None: ...

    def drop(self, request: _Sum) -> None: ...

    def advance(self) -> bool:
        for request in [request for request in self.requests.values() if request.ids]:
            number = request.ids[request.written % len(request.ids)]
            if number == ord(BREAK_LEADER):
                raise RuntimeError("boom")
            if number == ord(STOP_FOLLOWER) and self._ranks is not None:
                self._ranks.channel.send(str(number).encode())
                os.kill(_exchange(self._ranks, 0), signal.SIGSTOP)
                raise LostRankError("a step hangs")
            if self._ranks is not None:
                self._ranks.channel.send(str(number).encode())
            total = _add(self._ranks, number)
            self.outbox.append(Produced(request.id, Payload(GeneratedTokens(ids=(total,))), COMPLETED))
            request.written += 1
            most = request.sampling.max_tokens
            if request.written == (len(request.ids) if most is None else most):
                self.finish(request.id, "stop" if most is None else "length", {"tokens": request.written})
        return bool(self.requests)

    def check(self, sampling: SamplingParams, field: str) -> None: ...

    def usage(self) -> StageUsage:
        return {"requests": len(self.requests)}

    def counters(self) -> Mapping[str, int]:
        return {"pages": self._pages}

    def close(self) -> None:
        self.requests.clear()


class FollowerWorker(MailboxWorker[str]):
    """Of another rank. Reports that it always holds a row."""

    def __init__(self, ranks: Ranks, pages: int) -> None:
        super().__init__("writer")
        self._ranks = ranks
        self._pages = pages
        self._steps = 0

    def open(self, message: Open) -> str:
        raise AssertionError("requests are at rank 0")

    def feed(self, request: str, message: Feed) -> None: ...

    def end(self, request: str, source: str) -> None: ...

    def pause(self, request: str) -> None: ...

    def resume(self, request: str) -> None: ...

    def drop(self, request: str) -> None: ...

    def advance(self) -> bool:
        message = self._ranks.channel.take()
        if message is None:
            return False
        if int(message) == ord(BREAK_FOLLOWERS):
            raise RuntimeError("boom")
        if int(message) == ord(STOP_FOLLOWER):
            _exchange(self._ranks, os.getpid())
            return True
        _add(self._ranks, int(message))
        self._steps += 1
        return True

    def usage(self) -> StageUsage:
        return {"rows": 1}

    def counters(self) -> Mapping[str, int]:
        return {"pages": self._pages, "steps": self._steps}


class AdderStage:
    def __init__(self, ranks: Ranks | None, options: AdderOptions) -> None:
        self._ranks = ranks
        most = options.pages - (ranks.rank if ranks is not None else 0)
        self.footprint = Footprint(page_bytes=1, fewest_pages=1, most_pages=most)

    def measure(self) -> int:
        _add(self._ranks, 1)
        return 0

    def start(self, pages: int) -> MailboxWorker[_Sum] | MailboxWorker[str]:
        if self._ranks is None or not self._ranks.rank:
            return AdderWorker(self._ranks, pages)
        return FollowerWorker(self._ranks, pages)


class AdderKind:
    name = "adder"
    options = AdderOptions
    tensor_parallel = True
    expert_parallel = True  # accepted; there are no experts

    def load(self, context: StageContext) -> AdderStage:
        assert isinstance(context.options, AdderOptions)
        if context.ranks is not None and context.ranks.rank == context.options.fails_on:
            raise ValueError("this rank cannot be loaded")
        return AdderStage(context.ranks, context.options)
