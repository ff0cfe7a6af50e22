"""Captured steps of thinker and talker that run at the same time do not disturb each other: their graphs' memory is their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from omni_ar.layers.deepstack import DeepstackModel
from omni_qwen3_omni.talker import Talker
from tests.support.close_calls import Comparison
from tests.support.omni_engine import CHATS, SHAPES, OmniEngine, answers_alone, assert_all_same
from tests.support.reference import tiny_checkpoint

pytestmark = pytest.mark.gpu

CYCLES = 1_000_000
"""Of the device's clock: half a millisecond."""
ENOUGH = 20
"""Looks at which both stages had steps on the device."""


def napping(compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute` of a copy of its first argument, with naps before and after: what it reads and gives lies in the graph's memory
    for so long."""

    def compute_and_nap(self: object, first_RD: Tensor, *others: object) -> Any:
        copy_RD = first_RD.clone()
        torch.cuda._sleep(CYCLES)
        made = compute(self, copy_RD, *others)
        torch.cuda._sleep(CYCLES)
        return made.clone() if isinstance(made, Tensor) else made

    return compute_and_nap


class Watch:
    """Counts ticks after which both stages have steps on the device."""

    def __init__(self, omni: OmniEngine) -> None:
        self.both = 0
        self._omni = omni
        self._tick = omni.engine.tick

    def tick(self) -> bool:
        moved = self._tick()
        usage = self._omni.engine.usage()
        self.both += moved and usage["thinker"]["steps"] > 0 and usage["talker"]["steps"] > 0
        return moved


@pytest.mark.parametrize("shape", SHAPES)
def test_stages_that_replay_at_once_compute_the_same_as_alone(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers_alone(shape)
    for model in (DeepstackModel, Talker):
        for name in ("forward", "logits"):
            monkeypatch.setattr(model, name, napping(getattr(model, name)))
    monkeypatch.setattr(Talker, "predict_codes", napping(Talker.predict_codes))
    omni = OmniEngine(tiny_checkpoint(**SHAPES[shape]), {}, "cuda", graphs=True)
    watch = Watch(omni)
    monkeypatch.setattr(omni.engine, "tick", watch.tick)

    serial = [omni.answer(asked) for asked in CHATS]
    watch.both = 0
    together = omni.run([*CHATS, *CHATS], [0, 0, 1, 1, 2, 60, 80, 100, 120, 140])

    assert watch.both >= ENOUGH
    comparison = Comparison()
    assert_all_same(serial, expected, comparison)
    assert_all_same(together, [*expected, *expected], comparison)
    comparison.assert_rare()
