"""Whole requests on the simulated device, captured and checked for races, and through the launch guard."""

from functools import partial

import pytest
import torch

from omni.device import open_device
from omni.testing import LaunchGuard, SimulatedDevice, Simulation
from tests.plugins.omni_qwen2_5_omni.heard_omni import CHATS, SHAPES, STREAMED, WHOLE, HeardEngine, answers_alone
from tests.support.close_calls import Comparison
from tests.support.devices import LateDevice
from tests.support.omni_engine import Result, assert_all_same
from tests.support.tiers import SLOW, few
from tests.support.tiny_qwen2_5_omni import tiny_folder

FEW_ROWS = {
    "thinker.max_num_seqs": 3,
    "thinker.max_in_flight": 3,
    "thinker.block_size": 4,
    "talker.max_num_seqs": 2,
    "talker.max_in_flight": 3,
    "talker.block_size": 4,
    "token2wav.max_num_seqs": 2,
}
FEW_BLOCKS = {
    "thinker.num_blocks": 19,
    "thinker.block_size": 4,
    "thinker.max_num_batched_tokens": 9,
    "talker.num_blocks": 24,
    "talker.block_size": 4,
    "talker.max_in_flight": 4,
}
SEEDS = few(1, range(10), SLOW)


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_on_a_device_in_any_order(seed: int) -> None:
    shape, whole = ("other sizes", "as written")[seed % 2], seed % 4 < 2
    device = SimulatedDevice(seed)
    settings = FEW_ROWS | dict(WHOLE if whole else STREAMED)
    engine = HeardEngine(tiny_folder(**SHAPES[shape]), settings, device, graphs=True)
    results = [Result() for _ in CHATS]
    with torch.inference_mode():
        simulation = Simulation(device, engine.engine.tick, lambda: engine.engine.idle)
        for asked, result in zip(CHATS, results, strict=True):
            request = engine.request(asked)
            simulation.sometime(40, partial(engine.engine.submit, request, result.take))
        simulation.run()
    engine.assert_free()
    device.assert_no_races()
    assert_all_same(results, answers_alone(shape, whole), Comparison())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_chunked_preempted_and_run_ahead(seed: int) -> None:
    """Rows that conditioned steps of a preempted request are read again where they lie."""
    device = LateDevice(seed)
    engine = HeardEngine(tiny_folder(**SHAPES["as written"]), FEW_BLOCKS | dict(STREAMED), device, graphs=True)
    results, most = [Result() for _ in CHATS], 0
    with torch.inference_mode():
        for asked, result in zip(CHATS, results, strict=True):
            engine.engine.submit(engine.request(asked), result.take)

        def tick() -> bool:
            nonlocal most
            most = max(most, engine.engine.usage()["talker"]["steps"])
            return engine.engine.tick()

        Simulation(device, tick, lambda: engine.engine.idle).run()
    engine.assert_free()
    assert_all_same(results, answers_alone("as written", whole=False), Comparison())
    counters = engine.engine.counters()
    assert counters["thinker"]["preemptions"]
    assert counters["talker"]["preemptions"]
    assert most > 1


def test_no_torch_operation_outside_a_phase() -> None:
    device = open_device("cpu")
    engine = HeardEngine(tiny_folder(**SHAPES["as written"]), FEW_ROWS | dict(STREAMED), device)
    requests = [engine.request(asked) for asked in CHATS]  # the front end is free to use torch
    with LaunchGuard(device) as guard:
        results = engine.run_requests(requests, [0, 3, 5, 9, 14])
    assert all(result.error is None for result in results), [result.error for result in results]
    assert {"gather_rows", "begin_windows", "denoise_rows", "render_piece"} <= guard.launched
