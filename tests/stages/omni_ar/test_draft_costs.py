"""Drafts of a stage whose tokens choose experts: a row verifies those that are worth the experts they read."""

from dataclasses import replace
from typing import Any

import pytest

from omni.testing.simulation.late import LateDevice
from omni_ar.drafters.fabricated import FabricatedDrafter
from omni_ar.model import ArShape, ExpertShape
from omni_ar.options import ArOptions
from tests.stages.omni_ar.small_drafts import PROMPTS, SEEDED, answers, draft_setup
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText

DRAFTS = 6


class ManyExperts(SmallText):
    """Dense, with the shape of a mixture. So the number of drafts is that of a mixture."""

    def __init__(self) -> None:
        super().__init__(vocab=11)

    @property
    def shape(self) -> ArShape:
        return replace(super().shape, experts=ExpertShape(64, 2, 30.0))


MODEL = ManyExperts()


def driver_of(in_flight: int, rate: float | None, *, captured: bool = False, adaptive: bool = True) -> ArDriver:
    """rate: probability that a draft is right; None for no drafts."""
    given: dict[str, Any] = {"max_num_seqs": 4, "block_size": 4, "max_in_flight": in_flight}
    if rate is None:
        return ArDriver(MODEL, LateDevice(in_flight, check=False), ArOptions(**given))
    options = ArOptions(**given, drafter="fabricated", draft_tokens=DRAFTS, adaptive_drafts=adaptive)
    drafter = FabricatedDrafter({"rate": rate}, draft_setup(MODEL, DRAFTS))
    return ArDriver(MODEL, LateDevice(in_flight, check=in_flight == 3), options, captured=captured, drafter=drafter)


@pytest.mark.parametrize("seeded", [False, True])
def test_tokens_are_those_of_plain_decoding_with_fewer_drafts(seeded: bool):
    sampling = {"max_tokens": (70, 24, 60, 33), **(SEEDED if seeded else {})}
    plain = answers(driver_of(1, None), PROMPTS[:4], **sampling)
    driver = driver_of(3, 0.7, captured=True)
    for _ in range(2):
        assert answers(driver, PROMPTS[:4], **sampling) == plain
    drafted, steps = driver.counter("drafted_tokens"), driver.counter("drafted_steps")
    assert steps >= 20
    assert 1.5 < drafted / steps < DRAFTS - 1.5, "rows verify some of their drafts, not all"


def test_tokens_are_those_of_plain_decoding_with_all_drafts():
    """Positions without one repeat the newest token, here near the ends of requests."""
    most = (70, 2, 9, 33)
    plain = answers(driver_of(1, None), PROMPTS[:4], max_tokens=most)
    driver = driver_of(3, 0.7, captured=True, adaptive=False)
    for _ in range(2):
        assert answers(driver, PROMPTS[:4], max_tokens=most) == plain
    assert driver.counter("drafted_tokens") > 3 * driver.counter("drafted_steps")


def test_the_number_of_drafts_does_not_depend_on_the_steps_in_flight():
    """Rows that end change the costs of the others' drafts, on the device. With more steps in flight the host knows later."""
    counts = []
    for in_flight in (1, 3, 8):
        driver = driver_of(in_flight, 0.75)
        ends = ((70, 24, 60, 33), (70, 24, 60, 33), (50, 2, 3, 6), (1, 40, 5, 4))
        said = [answers(driver, PROMPTS[:4], max_tokens=most) for most in ends]
        counts.append((said, {name: n for name, n in driver.worker.counters().items() if "draft" in name}))
    assert all(each == counts[0] for each in counts)
    assert counts[0][1]["drafted_tokens"] >= 40
