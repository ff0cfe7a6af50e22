"""A drafter with weights whose drafts were wrong for some time, so that steps did not verify them, and are right then."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from omni.testing.simulation.late import LateDevice
from omni_ar.drafters import ModelDrafter
from omni_ar.drafters.draft_model import ArDraftModel
from omni_ar.model import Batch
from omni_ar.run import draft_policy
from tests.stages.omni_ar.small_drafts import MODEL, answers, driver_of

pytestmark = pytest.mark.usefixtures("cheap_passes")
PROBE = 16


class WrongAtFirst(ArDraftModel):
    """The stage's own model, whose proposals are wrong at the positions before `right_from`."""

    def __init__(self, right_from: int) -> None:
        super().__init__(MODEL, 11)
        self.right_from = right_from
        self._positions_T = torch.zeros(1, dtype=torch.int64)

    def forward(self, ids_T: Tensor, features_TH: Tensor | None, batch: Batch) -> Tensor:
        self._positions_T = batch.positions_PT[0]
        return super().forward(ids_T, features_TH, batch)

    def propose(self, hidden_RD: Tensor) -> Tensor:
        ids_R = super().propose(hidden_RD)
        return torch.where(self._positions_T.amax() < self.right_from, (ids_R + 1) % 11, ids_R)


def drafted(model: WrongAtFirst, in_flight: int = 1, **options: Any) -> Mapping[str, int]:
    """The counts of one request of 150 tokens, whose tokens are those of plain decoding."""
    given: dict[str, Any] = {"draft_tokens": 3, "max_in_flight": in_flight, **options}
    driver = driver_of("ngram", LateDevice(in_flight), made=ModelDrafter(model, 3), **given)
    sampling = {"max_tokens": 150, "ignore_eos": True}
    assert answers(driver, [[5, 6, 7]], **sampling) == answers(driver_of(), [[5, 6, 7]], **sampling)
    return {name: count for name, count in driver.worker.counters().items() if "draft" in name}


def test_it_is_tried_again_in_the_same_steps_with_any_number_in_flight(monkeypatch: pytest.MonkeyPatch):
    never = drafted(WrongAtFirst(right_from=1000))
    assert never["accepted_drafts"] == 0
    monkeypatch.setattr(draft_policy, "PROBE", PROBE)
    again = drafted(WrongAtFirst(right_from=60))
    assert again["accepted_drafts"] > 20
    for in_flight in (2, 3, 5, 8):
        assert drafted(WrongAtFirst(right_from=60), in_flight) == again


def test_without_a_probe_it_stays_out_of_a_long_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draft_policy, "PROBE", 1000)
    assert drafted(WrongAtFirst(right_from=60))["accepted_drafts"] == 0


def test_rows_that_begin_bring_verification_back():
    """The others' drafts count as their last ones did, and no row's as none because the drafter has not run."""
    model = WrongAtFirst(right_from=1000)
    driver = driver_of("ngram", made=ModelDrafter(model, 3), draft_tokens=3, max_num_seqs=8)
    for index in range(8):
        driver.ask(f"before {index}", [1 + index], {"max_tokens": 60 + 8 * index, "ignore_eos": True})
    while not driver.ends:
        driver.tick()
    model.right_from = 0
    wrong = driver.counter("accepted_drafts")
    for index in range(16):
        driver.ask(f"after {index}", [1 + index % 8, 2], {"max_tokens": 40 + 5 * index, "ignore_eos": True})
    driver.run()
    assert driver.counter("accepted_drafts") - wrong > 400
