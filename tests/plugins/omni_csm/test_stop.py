"""Sounds that end by themselves at a frame with end codes. The frame is decoded unless all of its codes are end codes, as in
transformers."""

from collections.abc import Sequence
from typing import Any

import pytest

from omni.frontend.base import Chat
from omni.testing.simulation.device import SimulatedDevice
from tests.support.csm_reference import assert_spoken, csm_reference_of, speak, tiny_csm, turn
from tests.support.omni_engine import OmniEngine, Result
from tests.support.reference import with_sampling
from tests.support.tiers import SLOW, chosen, few

pytestmark = pytest.mark.thorough

SHAPE: dict[str, Any] = {"stop_gain": 3.0, "sampled": True, "groups": 2, "codebook_size": 32}
THREE: dict[str, Any] = {"stop_gain": 6.0, "sampled": True, "groups": 3, "codebook_size": 32}
SAMPLED: dict[str, Any] = {"frames": 20, "temperature": 0.9, "top_k": 10}
ASKED = [
    *(speak("hello there", **SAMPLED, seed=seed) for seed in range(4)),
    *(speak("on", **SAMPLED, seed=seed) for seed in (4, 5, 8, 11)),
]
"""With these seeds, some end at a frame that is decoded, some at one that is not, and some at their limit."""
SETTINGS: dict[str, dict[str, object]] = {
    "as shipped": {},
    "synchronous": {"backbone.max_in_flight": 1},
    "four ahead, three rows": {"backbone.max_in_flight": 4, "backbone.max_num_seqs": 3},
    "few blocks": {"backbone.num_blocks": 14, "backbone.block_size": 4, "backbone.prefix_cache": False},
}


def check(asked: Sequence[Chat], results: Sequence[Result], shape: dict[str, Any] = SHAPE) -> tuple[int, int]:
    """How many ended by themselves, and how many of these at a frame that is decoded."""
    reference, ended, heard = csm_reference_of(tiny_csm(7, **shape)), 0, 0
    for one, result in zip(asked, results, strict=True):
        spoken = reference.speech(one)
        assert_spoken(result, spoken)
        assert result.reasons["backbone"] == ("stop" if spoken.ended else "length")
        ended += spoken.ended
        heard += spoken.ended and not bool(spoken.codes[:-1, -1].any())
    return ended, heard


@pytest.mark.parametrize("case", chosen(["few blocks"], SETTINGS))
def test_a_frame_of_end_codes_ends_a_request(case: str) -> None:
    engine = OmniEngine(tiny_csm(7, **SHAPE), SETTINGS[case])
    ended, heard = check(ASKED, engine.run(ASKED, range(len(ASKED))))
    assert len(ASKED) > ended > heard > 0
    assert (engine.engine.counters()["backbone"]["preemptions"] > 0) == (case == "few blocks")


def test_all_groups_but_the_last_must_be_ends() -> None:
    asked = [speak("hello there", **SAMPLED, seed=seed) for seed in (0, 1, 2, 7, 14)]
    engine = OmniEngine(tiny_csm(7, **THREE), {"backbone.max_num_seqs": 5})
    results = engine.run(asked)
    ended, heard = check(asked, results, THREE)
    assert 0 < heard < ended
    assert any(bool((result.codes[0, :-1] == 0).any()) for result in results), "an end code alone ends nothing"


def test_at_the_limit_too() -> None:
    """The last allowed frame is decoded. If it ends the sound, it is decoded unless all of its codes are end codes."""
    reference = csm_reference_of(tiny_csm(7, **SHAPE))
    asked = []
    for one in ASKED[2:]:
        frames = reference.speech(one).codes.shape[1]
        asked += [
            with_sampling(one, "backbone", max_tokens=limit) for limit in (frames - 1, frames, frames + 1) if limit
        ]
    assert check(asked, OmniEngine(tiny_csm(7, **SHAPE)).run(asked))[0] > 5


GOES_ON: dict[str, dict[str, Any]] = {
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 12},
    "min_tokens, all of them": {"min_tokens": 20},
}


@pytest.mark.parametrize("case", few(1, GOES_ON, SLOW))
def test_min_tokens_and_ignore_eos_continue_past_end_codes(case: str) -> None:
    said = turn("user", "so", 0.3, 2)
    asked = [speak(said, "hello there", **SAMPLED, **GOES_ON[case], seed=seed) for seed in range(6)]
    results = OmniEngine(tiny_csm(7, **SHAPE), {"backbone.max_in_flight": 3}).run(asked)
    ended, _ = check(asked, results)
    assert (ended > 2) == (case == "min_tokens")
    least = GOES_ON[case].get("min_tokens", 20)
    assert all(result.codes.shape[1] >= least for result in results)
    passed = [result for result in results if not result.codes[:-1, : least - 1].any(0).all()]
    assert passed, "some frame would have ended it"


def test_ends_on_a_device_in_any_order() -> None:
    settings = {"backbone.max_in_flight": 3, "backbone.max_num_seqs": 3}
    engine = OmniEngine(tiny_csm(7, **SHAPE), settings, SimulatedDevice(3), graphs=True)
    asked = [
        *ASKED[:4],
        speak("on", **SAMPLED, seed=3, min_tokens=9),
        speak("and on", **SAMPLED, seed=4, ignore_eos=True),
    ]
    assert check(asked, engine.run_simulated(asked))[0] >= 3


def test_nothing_is_heard_of_a_sound_that_begins_with_its_end() -> None:
    folder = tiny_csm(7, stop_gain=3.0, sampled=True, groups=3, codebook_size=16)
    result = OmniEngine(folder).answer(speak("hello there", **SAMPLED, seed=12))
    assert (result.frames, result.wave.size, result.reasons["backbone"]) == ([], 0, "stop")
