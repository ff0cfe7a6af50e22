"""The rule by which tests of other devices excuse a difference: the choice must have hung by a hair."""

from collections.abc import Mapping

import pytest
import torch

from omni.device import Device
from omni.device.cpu import CpuDevice
from tests.support.ar_driver import ArDriver
from tests.support.close_calls import CLOSE, Choice, Comparison, WatchedCpu
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.small_text import SmallText, greedy

PROMPT = [5, 9, 2]
STAGE = "ar"


def run(device: Device, model: SmallText, sampling: Mapping[str, object] = {}) -> list[int]:
    driver = ArDriver(model, device)
    driver.ask("0", PROMPT, sampling, max_tokens=8)
    driver.run()
    return driver.tokens("0")


def twins(apart: float) -> SmallText:
    """A model whose third token has a rival that is `apart` by its logit there."""
    model = SmallText()
    hidden_D = model.whole([*PROMPT, *greedy(model, PROMPT, 2)])[-1]
    best, rival = (model.head @ hidden_D).topk(2).indices
    with torch.no_grad():
        gap = (model.head[best] - model.head[rival]) @ hidden_D - apart
        model.head[rival] += gap / hidden_D.square().sum() * hidden_D
    return model


@pytest.mark.parametrize(("apart", "is_close"), [(0.3 * CLOSE, True), (3 * CLOSE, False)])
def test_a_choice_is_close_if_two_logits_are(apart: float, is_close: bool):
    device = WatchedCpu()
    assert run(device, twins(apart))[:2] == greedy(SmallText(), PROMPT, 2)
    assert device.close == ({Choice(STAGE, 2)} if is_close else set())
    assert device.choices == 8


def test_watching_changes_nothing():
    sampled = {"temperature": 0.9, "top_k": 5, "seed": 1}
    for sampling in ({}, sampled):
        assert run(WatchedCpu(), SmallText(), sampling) == run(CpuDevice(), SmallText(), sampling)


def test_codes_of_every_group_are_watched():

    def frames(model: SmallCodec, device: Device) -> list[list[int]]:
        driver = ArDriver(model, device)
        driver.speak("0", codec_prompt([1, 2], [3, 4]), [5, 6], pad=2, max_tokens=5)
        driver.gather_all()
        return driver.frames("0")

    first = frames(SmallCodec(), CpuDevice())[0]
    for group in (1, 2):
        # Two of the group's codes are equally likely, whatever comes before: one of them is its first frame's.
        model, device, code = SmallCodec(), WatchedCpu(), first[group]
        with torch.no_grad():
            model.heads[group][(code + 1) % model.codes] = model.heads[group][code]
        frames(model, device)
        assert Choice(STAGE, 0, group) in device.close
        # Of a token that ends the row a frame is predicted too, and thrown away.
        assert device.choices == 5 * len(first)


def test_only_close_differences_are_excused():
    close = {Choice("s", 2), Choice("s", 1, 1)}
    comparison = Comparison()
    assert comparison.tokens("s", [1, 2, 3], [1, 2, 3], close)
    assert not comparison.tokens("s", [1, 2, 4, 9], [1, 2, 3, 5], close)
    assert not comparison.tokens("s", [1, 2], [1, 2, 3], close)
    assert not comparison.frames("s", [(1, 2), (3, 4)], [(1, 2), (3, 5)], close)
    assert comparison.excused == [Choice("s", 2), Choice("s", 2), Choice("s", 1, 1)]
    with pytest.raises(AssertionError, match="position=1, group=0"):
        comparison.tokens("s", [1, 9, 3], [1, 2, 3], close)
    with pytest.raises(AssertionError, match="position=0, group=1"):
        comparison.frames("s", [(1, 3)], [(1, 2)], close)
    with pytest.raises(AssertionError, match="position=3"):
        comparison.tokens("s", [1, 2, 3, 4], [1, 2, 3], close)


def test_differences_must_be_rare():
    comparison = Comparison()
    with pytest.raises(AssertionError):
        comparison.assert_rare()
    comparison = Comparison(choices=500, excused=[Choice("s", 0)])
    comparison.assert_rare()
    comparison.excused.append(Choice("s", 3))
    with pytest.raises(AssertionError, match="of 500 choices"):
        comparison.assert_rare()
