"""Tokens that were decoded without the drafter, which has no keys and values of them: no later request takes them from the prefix
cache, so that its drafts are those without one."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from omni_ar.kernels.step.draft_state import RATE_ONE
from omni_ar.run.plan import StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.scheduler import Scheduler
from tests.stages.omni_ar.small_drafts import MODEL
from tests.stages.omni_ar.test_head_drafts import driver_of, kept_hidden
from tests.stages.omni_ar.test_late_drafts import DRAFTED
from tests.stages.omni_ar.test_model_drafts import OTHER, drafted
from tests.stages.omni_ar.test_pipeline import Pipelined
from tests.support.ar_driver import ArDriver
from tests.support.tiers import SLOW, few
from tests.support.trained_heads import trained

pytestmark = pytest.mark.thorough

PROMPT, BLOCK = [5, 6, 7, 2, 9, 1], 4
KINDS = ("eagle3", "mtp", "model", "right model", "late")
CASES = [(kind, start) for start in (4, 1, 2, 3, 5, 6, 7, 8) for kind in KINDS]


def without_drafter(monkeypatch: pytest.MonkeyPatch, start: int, end: int) -> None:
    """Steps of the request `first` verify no drafts while the host has read from `start` to `end` of its tokens."""
    compose = Scheduler._compose

    def in_turn(self: Scheduler, isolated: ArRequest | None) -> StepPlan | None:
        for request in self._running:
            left_out = request.id == "first" and start <= len(request.outputs) < end
            request.gain_history.restart(0 if left_out else 3 * RATE_ONE)
        return compose(self, isolated)

    monkeypatch.setattr(Scheduler, "_compose", in_turn)


def made(kind: str, cached: bool) -> tuple[ArDriver, Pipelined | None]:
    given: dict[str, Any] = {"prefix_cache": cached, "max_in_flight": 1}
    if kind == "late":
        options = msgspec.structs.replace(DRAFTED, **given, drafter_args={"noise": 0.05})
        cut = Pipelined(2, options)
        return cut.driver, cut
    if kind in ("model", "right model"):
        return drafted(OTHER if kind == "model" else MODEL, drafts=3, **given), None
    return driver_of(trained(kind), drafts=3, **given), None


@pytest.mark.parametrize(("kind", "start"), few(len(KINDS), CASES, SLOW))
def test_blocks_that_the_drafter_left_out_are_not_shared(kind: str, start: int, monkeypatch: pytest.MonkeyPatch):
    without_drafter(monkeypatch, start, end=10)
    seen: list[list[Tensor]] = []
    for cached in (False, True):
        driver, cut = made(kind, cached)
        driver.ask("first", PROMPT, max_tokens=20)
        driver.gather_all()
        history = [*PROMPT, *driver.tokens("first")]
        seen.append(kept_hidden(driver))
        for name, tail in (("second", [3, 3]), ("third", [4, 1, 4])):
            driver.ask(name, [*history, *tail], max_tokens=6)
            driver.gather_all()
        if cut is not None:
            cut.end()
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    second, third = (driver.done(name).counts["cached_tokens"] for name in ("second", "third"))
    # The last token before the gap, and the one before it, may be without the drafter too.
    assert len(PROMPT) + start - 2 - BLOCK < second <= len(PROMPT) + start
    assert third > len(history) - BLOCK, "the second request has run what was missing"
