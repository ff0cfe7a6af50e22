"""The turn of the engine in which a payload reaches its consumer: the one that reads its token, before a step is launched."""

from pathlib import Path

import pytest

from omni.device import Phase, Stream
from omni.sampling import SamplingParams
from omni.stage import Feed
from omni.testing import SimulatedDevice
from omni.testing.engines import TickedEngine
from tests.support.conditioned import ANSWERER, WRITER, ask, conditioned_plugins, write_checkpoint

STEP, COPY = "prepare_decodes", "gather_rows"
"""The first launch of a decode step, and the copy of hidden states out of the writer's pages."""


class LaunchLog(SimulatedDevice):
    """launched: stream and phase of each launch, in order. during: a stream whose work completes while a step of the
    other stage is launched; None if work completes between turns only."""

    def __init__(self, during: str | None = None) -> None:
        super().__init__()
        self.launched: list[tuple[str, str]] = []
        self.during = during

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        super().launch(stream, phase, *buffers)
        self.launched.append((stream.name, phase.__name__))
        if phase.__name__ == STEP and self.during not in (None, stream.name):
            self.run([self.during])


def begin(folder: Path, device: LaunchLog, requests: int) -> TickedEngine:
    """Both stages decode all requests."""
    settings = {"answerer.max_num_seqs": requests, "writer.max_num_seqs": requests}
    engine = TickedEngine(write_checkpoint(folder), conditioned_plugins(), settings, device, graphs=False)
    sampling = {WRITER: SamplingParams(max_tokens=40), ANSWERER: SamplingParams(max_tokens=40)}
    for index in range(requests):
        engine.engine.submit(ask(str(index), [3 + index], [5], sampling=sampling), lambda output: None)
    while engine.engine.counters()[ANSWERER]["decode_tokens"] < 4 * requests:
        engine.tick()
        device.run()
    return engine


def waiting(engine: TickedEngine) -> int:
    """Payloads that are ready and not copied."""
    worker = engine.engine._workers[ANSWERER]
    return engine.engine.usage()[ANSWERER]["leases"] + sum(isinstance(each, Feed) for each in worker.inbox)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_payload_is_copied_before_the_turn_launches_a_step(tmp_path: Path, requests: int) -> None:
    device = LaunchLog()
    engine = begin(tmp_path, device, requests)
    copies = 0
    for _ in range(12):
        device.run()
        device.launched.clear()
        engine.tick()
        assert not waiting(engine)
        steps = [index for index, (_, phase) in enumerate(device.launched) if phase == STEP]
        copied = [index for index, (_, phase) in enumerate(device.launched) if phase == COPY]
        assert not copied or max(copied) < min(steps), device.launched
        copies += len(copied)
    assert copies >= 6, "three of four hidden states are vectors"
    engine.close()


def test_a_payload_that_is_ready_during_a_launch_waits_for_no_other(tmp_path: Path) -> None:
    """The writer's step ends while the answerer's is launched: the copy follows in the same turn."""
    device = LaunchLog()
    engine = begin(tmp_path, device, 1)
    device.during = WRITER
    copies = 0
    for _ in range(12):
        device.run([ANSWERER])
        device.launched.clear()
        engine.tick()
        assert not waiting(engine)
        copies += [phase for _, phase in device.launched].count(COPY)
    assert copies >= 6
    engine.close()
