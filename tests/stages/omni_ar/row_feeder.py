"""Plays the producer of conditioning vectors for an autoregressive stage that is driven by hand.

Shape legend: W width, B blocks, S block size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.connector import Ref
from omni.device import COMPLETED, Device, Event
from omni.payload import PageSlice, Payload
from omni.stage import Feed, Lease
from omni.testing.stages.loan import lend
from omni_ar.inputs import StepInputs
from omni_ar.options import ArOptions
from tests.support.ar_driver import TEXT, ArDriver
from tests.support.conditioned import PAD, Condition, ConditionedText, answered

WIDTH = 8
MODEL = ConditionedText(WIDTH)


@dataclass(slots=True)
class Late:
    """An event that is done when the test sets `over`."""

    finished: bool = False

    def done(self) -> bool:
        return self.finished


@dataclass(slots=True)
class Given:
    """Rows that were fed. taken: whether they no longer count against the edge's credit."""

    ref: Ref
    taken: bool = False


@dataclass(slots=True)
class RowFeeder:
    """pages: `[B, S, W]`, memory of the slices. heard: the conditioning of each request, in order. asked: prompt and
    `max_tokens` of each."""

    driver: ArDriver
    pages: Tensor
    model: ConditionedText = MODEL
    heard: dict[str, list[Condition]] = field(default_factory=dict)
    asked: dict[str, tuple[Sequence[int], int]] = field(default_factory=dict)
    lent: list[Given] = field(default_factory=list)
    slices: list[PageSlice] = field(default_factory=list)

    def open(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        sources: Sequence[str] = (TEXT,),
        order: tuple[int, int] = (0, 0),
    ) -> None:
        self.asked[name] = prompt, max_tokens
        self.driver.ask(name, prompt, sources=sources, order=order, max_tokens=max_tokens)

    def rows(self, name: str, texts: Sequence[int], slots: Sequence[int], *, ready: Event = COMPLETED) -> Given:
        """Steps that are conditioned by a text id and a row of the pages each."""
        rows_nW = self.pages.flatten(0, 1)[list(slots)].cpu()
        part = PageSlice(self.pages, np.array(slots, np.int64))
        self.slices.append(part)
        return self._give(name, texts, part, rows_nW, ready)

    def tensor(self, name: str, texts: Sequence[int], rows_nW: Tensor) -> Given:
        return self._give(name, texts, rows_nW, rows_nW.cpu(), COMPLETED)

    def texts(self, name: str, texts: Sequence[int]) -> None:
        """Steps that are conditioned by a text id alone."""
        self.driver.feed_host(name, Payload(StepInputs(columns=self._columns(texts))))
        self.heard.setdefault(name, []).extend((text, None) for text in texts)

    def end(self, *names: str) -> None:
        """`PAD` conditions all later steps."""
        pad = np.full(len(self.model.shape.step_columns), PAD)
        for name in names:
            self.driver.feed_host(name, Payload(StepInputs(columns=self._columns([]), pad=pad)))
            self.driver.end(name, source=TEXT)

    def give(self, name: str, payload: Payload, ready: Event = COMPLETED) -> Given:
        ref, pending = lend(payload, ready)
        given = Given(ref)
        self.lent.append(given)

        def taken() -> None:
            given.taken = True

        self.driver.worker.inbox.append(Feed(name, payload, ready, Lease(pending, [payload], taken)))
        return given

    def tokens(self, name: str) -> list[int]:
        return self.driver.tokens(name)

    def expected(self, name: str) -> list[int]:
        """The request's tokens, everything recomputed for each."""
        prompt, max_tokens = self.asked[name]
        with torch.inference_mode():
            return answered(self.model, prompt, self.heard.get(name, []), PAD, max_tokens)

    def check(self, *names: str) -> None:
        """Runs until the stage is idle: these requests have their tokens, and no memory of any request is held."""
        self.driver.run()
        for name in names:
            assert self.tokens(name) == self.expected(name)
        assert not self.driver.held
        assert all(given.taken and given.ref.freed for given in self.lent)

    def _give(self, name: str, texts: Sequence[int], rows: PageSlice | Tensor, heard_nW: Tensor, ready: Event) -> Given:
        self.heard.setdefault(name, []).extend(zip(texts, heard_nW, strict=True))
        return self.give(name, Payload(StepInputs(columns=self._columns(texts)), {"vectors": rows}), ready)

    def _columns(self, texts: Sequence[int]) -> np.ndarray:
        return np.array(texts, np.int64)[None][: len(self.model.shape.step_columns)]


def feeder(
    model: ConditionedText = MODEL, device: Device | None = None, captured: bool = False, **changes: object
) -> RowFeeder:
    options = replace(ArOptions(max_num_seqs=4, block_size=3), **changes)
    return RowFeeder(ArDriver(model, device, options, captured=captured), random_pages(), model)


def random_pages(seed: int = 0) -> Tensor:
    return torch.randn(8, 4, WIDTH, generator=torch.Generator().manual_seed(seed))
