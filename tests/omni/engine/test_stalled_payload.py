"""A payload side that stalls for seconds delays no token of any request, and no payload is lost."""

from pathlib import Path

import pytest

from omni.testing.simulation.device import SimulatedDevice
from tests.omni.engine.hidden_engine import HiddenEngine
from tests.support.hidden_family import HOST_READER, MODALITIES, READER, WRITER, write_checkpoint
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

SECONDS = 5.0
TOKENS = 14
PROMPTS = [[(7 * place + 3 * index) % 61 for place in range(4 + 2 * index)] for index in range(4)]
STREAMS = {
    "reader": (READER,),
    "reader-copy": (READER,),
    f"{WRITER}->{HOST_READER}-host": (HOST_READER,),
}
"""Of the payload side, and the readers that wait for each."""


def steady_device(seed: int) -> SimulatedDevice:
    """Its streams stall only on request."""
    device = SimulatedDevice(seed)
    assert device.schedule is not None
    device.schedule.stalls = 0.0
    return device


def ask(engine: HiddenEngine, stalled: str | None) -> float:
    """Requests that arrive and end while a stream stalls. Returns the time of the last token, in the device's seconds."""
    device = engine.device
    assert isinstance(device, SimulatedDevice)
    results = {}
    last_token = 0.0

    def submit(index: int) -> None:
        results[index] = engine.submit(str(index), PROMPTS[index], payload=[0], max_tokens=TOKENS)

    def look() -> bool:
        nonlocal last_token
        before = len(engine.log)
        moved = engine.tick()
        if any(modality == "text" for _, modality in engine.log[before:]):
            last_token = device.now
        return moved

    simulation = engine.simulate(look)
    for index in range(len(PROMPTS)):
        simulation.at(10 * index, lambda index=index: submit(index))  # type: ignore[misc]
    if stalled is not None:
        device.stall(stalled, SECONDS)
    simulation.run()
    for index, result in results.items():
        assert result.tokens == engine.greedy(PROMPTS[index], TOKENS)
        engine.expect(result, PROMPTS[index], [0])
    device.assert_no_races()
    engine.assert_free()
    return last_token


@pytest.mark.parametrize("seed", few(1, range(3), SLOW))
@pytest.mark.parametrize("stalled", STREAMS)
def test_tokens_come_while_the_payload_stream_stalls(tmp_path: Path, stalled: str, seed: int) -> None:
    folder = write_checkpoint(tmp_path, readers=[READER, HOST_READER], credit=64)
    settings = {"writer.max_in_flight": 1 + seed}
    undisturbed = ask(HiddenEngine(folder, settings, steady_device(seed)), None)
    device = steady_device(seed)
    engine = HiddenEngine(folder, settings, device)
    last_token = ask(engine, stalled)
    assert last_token < SECONDS / 10, "no token waits"
    assert undisturbed < SECONDS / 10
    assert device.now > SECONDS
    last = max(place for place, (_, modality) in enumerate(engine.log) if modality == "text")
    late = {MODALITIES[reader] for reader in STREAMS[stalled]}
    assert late.isdisjoint(modality for _, modality in engine.log[:last]), "its payload comes when all tokens are there"
