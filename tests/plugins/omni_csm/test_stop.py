"""Sounds that end by themselves: with a frame of end codes, which is not spoken, as transformers stops."""

import pytest
import torch

from omni.testing.simulation import SimulatedDevice, Simulation
from support.csm_reference import csm_reference_of, speak, tiny_csm
from support.omni_engine import OmniEngine, Result

SHAPE = {"stop_gain": 3.0, "sampled": True, "groups": 2, "codebook_size": 32}
ASKED = [speak("hello there", frames=20, temperature=0.9, top_k=10, seed=seed) for seed in range(6)]
SETTINGS = {
    "as shipped": {},
    "synchronous": {"backbone.max_in_flight": 1},
    "four ahead, three rows": {"backbone.max_in_flight": 4, "backbone.max_num_seqs": 3},
    "few blocks": {"backbone.num_blocks": 70, "backbone.block_size": 4},
}


def check(results: list[Result]) -> int:
    """How many ended by themselves."""
    reference, ended = csm_reference_of(tiny_csm(7, **SHAPE)), 0
    for asked, result in zip(ASKED, results, strict=False):
        codes_GN = reference.speech(asked).codes
        ends = not codes_GN[:-1, -1].any()
        assert result.error is None, result.error
        assert torch.equal(result.codes, codes_GN[:, :-1] if ends else codes_GN)
        assert result.reasons["backbone"] == ("stop" if ends else "length")
        ended += ends
    return ended


@pytest.mark.parametrize("case", SETTINGS)
def test_a_frame_of_end_codes_ends_a_request(case: str):
    engine = OmniEngine(tiny_csm(7, **SHAPE), SETTINGS[case])
    assert check(engine.run(ASKED, range(len(ASKED)))) == 5


def test_ends_on_a_device_in_any_order():
    device, settings = SimulatedDevice(3), {"backbone.max_in_flight": 3, "backbone.max_num_seqs": 3}
    engine = OmniEngine(tiny_csm(7, **SHAPE), settings, device, graphs=True)
    results = [Result() for _ in ASKED[:4]]
    for asked, result in zip(ASKED, results, strict=False):
        engine.engine.submit(engine.request(asked), result.take)
    with torch.inference_mode():
        Simulation(device, engine.engine.tick, lambda: engine.engine.idle).run()
    engine.assert_free()
    assert check(results) == 3
