"""Plays the producer of device rows for an autoregressive stage that is driven by hand.

Shape legend: W width, B blocks, S block size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from omni.connector import Ref
from omni.device import COMPLETED, Event
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Feed, Lease, Open
from omni_ar.inputs import StepInputs
from tests.support.ar_driver import TEXT, ArDriver, plain_prompt
from tests.support.listener import Condition

PAD = 2


@dataclass(slots=True)
class Late:
    """An event that is done when the test says so."""

    over: bool = False

    def done(self) -> bool:
        return self.over


@dataclass(slots=True)
class Given:
    """Rows that were lent. taken: whether they count no more against the edge's credit."""

    ref: Ref
    taken: bool = False


@dataclass(slots=True)
class RowFeeder:
    """pages: `[B, S, W]`, what slices are of. columns: step columns of the model. heard: what each request was told, in order."""

    driver: ArDriver
    pages: Tensor
    columns: int = 1
    heard: dict[str, list[Condition]] = field(default_factory=dict)
    lent: list[Given] = field(default_factory=list)
    slices: list[PageSlice] = field(default_factory=list)

    def open(
        self,
        name: str,
        prompt: Sequence[int] | None,
        *,
        sources: Sequence[str] = (TEXT,),
        rank: tuple[int, int] = (0, 0),
        **sampling: object,
    ) -> None:
        """prompt: fed at once; None if it comes later."""
        self.driver.worker.inbox.append(Open(name, SamplingParams(**sampling), frozenset(sources), rank))
        if prompt is not None:
            self.driver.feed_host(name, Payload(plain_prompt(prompt)))

    def rows(self, name: str, texts: Sequence[int], slots: Sequence[int], *, ready: Event = COMPLETED) -> Given:
        """Steps that hear a text id and a row of the pages each."""
        rows_nW = self.pages.flatten(0, 1)[list(slots)].cpu()
        part = PageSlice(self.pages, np.array(slots, np.int64))
        self.slices.append(part)
        return self._give(name, texts, part, list(rows_nW), ready)

    def tensor(self, name: str, texts: Sequence[int], rows_nW: Tensor) -> Given:
        return self._give(name, texts, rows_nW, list(rows_nW.cpu()), COMPLETED)

    def texts(self, name: str, texts: Sequence[int]) -> None:
        """Steps that hear nothing but a text id."""
        self.driver.feed_host(name, Payload(StepInputs(columns=self._columns(texts))))
        self.heard.setdefault(name, []).extend((text, None) for text in texts)

    def end(self, name: str, source: str = TEXT) -> None:
        """All later steps hear `PAD`."""
        pad = np.full(self.columns, PAD)
        self.driver.feed_host(name, Payload(StepInputs(columns=self._columns([]), pad=pad)))
        self.driver.end(name, source=source)

    def give(self, name: str, payload: Payload, ready: Event = COMPLETED) -> Given:
        """Any payload, lent."""
        connector = self.driver.connector
        given = Given(connector.send(payload, ready, self.driver.worker_stream))
        self.lent.append(given)

        def taken() -> None:
            given.taken = True

        self.driver.worker.inbox.append(Feed(name, payload, ready, Lease(connector, given.ref, 1, taken)))
        return given

    def _give(
        self, name: str, texts: Sequence[int], rows: PageSlice | Tensor, heard: Sequence[Tensor], ready: Event
    ) -> Given:
        self.heard.setdefault(name, []).extend(zip(texts, heard, strict=True))
        return self.give(name, Payload(StepInputs(columns=self._columns(texts)), {"rows": rows}), ready)

    def _columns(self, texts: Sequence[int]) -> np.ndarray:
        return np.array(texts, np.int64)[None][: self.columns]


def random_pages(width: int, blocks: int = 8, size: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(blocks, size, width, generator=torch.Generator().manual_seed(seed))
