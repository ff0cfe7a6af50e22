"""Frames of a talker with several layer ranges are those of the whole talker after a step has failed."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from torch import Tensor

from omni_ar.model import Batch, Codes, DrawCode, NextTokens
from tests.stages.omni_ar.test_pipeline import OPTIONS, Pipelined
from tests.support.ar_driver import ArDriver
from tests.support.deep_models import DeepTalker, filled
from tests.support.small_codec import codec_prompt

pytestmark = pytest.mark.thorough

REQUESTS = range(4)


class FragileTalker(DeepTalker):
    """fails: a method of the model, and the number of its call that fails."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        super().__init__()
        self._fails = fails
        self._calls = 0

    def _check(self, method: str) -> None:
        if self._fails is not None and self._fails[0] == method:
            self._calls += 1
            if self._calls == self._fails[1]:
                raise ValueError("broken")

    def embed_next(self, step: NextTokens) -> Tensor:
        self._check("embed_next")
        return super().embed_next(step)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        self._check("forward")
        return super().forward(x_TD, batch)

    def predict_codes(self, hidden_RD: Tensor, code0_R: Tensor, draw: DrawCode) -> Codes:
        self._check("predict_codes")
        return super().predict_codes(hidden_RD, code0_R, draw)


def speak(driver: ArDriver) -> None:
    for index in REQUESTS:
        text = [(5 * index + 2 * place) % DeepTalker.texts for place in range(3 + index)]
        driver.speak(str(index), codec_prompt(text, text), [index, 3, 4], pad=2, max_tokens=12)


def frames(driver: ArDriver) -> Sequence[object]:
    return [driver.frames(str(index)) for index in REQUESTS]


@pytest.fixture(scope="module")
def expected() -> Sequence[object]:
    driver = ArDriver(filled(DeepTalker()), options=OPTIONS)
    speak(driver)
    driver.gather_all()
    return frames(driver)


@pytest.mark.plants_faults
@pytest.mark.parametrize("call", [5, 6])
@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize(
    ("method", "ranks"), [("embed_next", range(2)), ("forward", [0]), ("predict_codes", [0])], ids=str
)
def test_frames_of_a_failed_step_are_made_again(
    method: str, ranks: Sequence[int], in_flight: int, call: int, expected: Sequence[object]
) -> None:
    """Rank 0 has the last layers; the other rank gets a message without contents. Two calls in a row are of two micro-batches."""
    options = replace(OPTIONS, max_in_flight=in_flight)
    cut = Pipelined(2, options, kind=FragileTalker, fails=dict.fromkeys(ranks, (method, call)))
    speak(cut.driver)
    cut.run()
    assert cut.driver.counter("retries") == 1
    assert frames(cut.driver) == expected
