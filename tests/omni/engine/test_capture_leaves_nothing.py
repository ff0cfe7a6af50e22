"""Work that is captured at the start may run then, without an effect on later steps."""

import gc
from typing import TypeVar

import pytest
import torch

from omni.device import HostSlot
from omni.payload import Payload
from omni.testing.stages.driver import StageDriver
from omni_ar.kernels.step.state import RowState
from omni_encoder.inputs import MediaItem
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker
from tests.support.devices import WarmingDevice
from tests.support.frame_bench import random_codes
from tests.support.mixed_traffic import alone, make_world
from tests.support.painter import Bench
from tests.support.received import Received, tensors_of
from tests.support.tiers import SLOW, few
from tests.support.tower import Tower
from tests.support.traffic_world import AnyEngine, World

pytestmark = pytest.mark.thorough


class DeferringDevice(WarmingDevice):
    """may_defer: whether captures may be deferred."""

    may_defer = False

    def defer_captures(self) -> None:
        self.may_defer = True


STAGES = {
    "hidden": {"writer"},
    "codec": {"speaker", "voice", "echo"},
}
"""Those that capture."""
Kind = TypeVar("Kind")
times = pytest.mark.parametrize("times", few(1, [2, 1], SLOW))


def capturing(where: World, device: DeferringDevice) -> AnyEngine:
    """Every size that there is by default, and several steps in flight."""
    settings = {name: values[0] for name, values in where.knobs.items()}
    for name in settings:
        if name.endswith(("graph_batch_sizes", "graph_chunk_sizes")):
            settings[name] = None
        if name.endswith("max_in_flight"):
            settings[name] = 2
    return where.engine(device, settings)


def of_type(kind: type[Kind]) -> list[Kind]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is kind]


@times
@pytest.mark.parametrize("name", STAGES)
def test_an_engine_starts_as_if_nothing_had_run(name: str, times: int) -> None:
    where, device = make_world(name), DeferringDevice(times)
    expected = [alone(where, content) for content in range(where.contents)]
    before = {id(each) for each in of_type(RowState)}
    with torch.inference_mode():
        engine = capturing(where, device)
        assert {stage for stage in engine.usage() if any(name.startswith(stage) for name in device.captured)} == STAGES[
            name
        ]
        assert device.may_defer
        assert {count for counts in engine.counters().values() for count in counts.values()} == {0}
        assert {count for counts in engine.usage().values() for count in counts.values()} == {0}
        assert not [slot for slot in of_type(HostSlot) if slot.claimed or not slot.free]
        states = [each for each in of_type(RowState) if id(each) not in before]
        assert [int(state.counter) for state in states] == [0] * len(states)
        heard = [Received() for _ in expected]
        for content, one in enumerate(heard):
            engine.submit(where.request(content, str(content), 0), one.take)
        while not engine.idle:
            engine.tick()
        for one, by_itself in zip(heard, expected, strict=True):
            assert one.error is None
            one.assert_like(by_itself)
        engine.close()


@times
def test_a_diffusion_stage_starts_as_if_nothing_had_run(times: int) -> None:
    device = DeferringDevice(times)
    bench = Bench(device, first_chunk_blocks=1, chunk_blocks=2, blocks_before=1, blocks_after=1)
    bench.diffusion.capture([4, 2, 1])
    assert device.captured
    assert set(bench.diffusion.counters().values()) == set(bench.diffusion.usage().values()) == {0}
    codes = {name: random_codes(11, seed) for seed, name in enumerate("ab")}
    for name, own in codes.items():
        bench.speak(name, own)
    bench.settle(device)
    for name, own in codes.items():
        bench.expect(name, own)


@times
def test_an_encoder_starts_as_if_nothing_had_run(times: int) -> None:
    device = DeferringDevice(times)
    worker = EncoderWorker("tower", device, Tower(), EncoderOptions(), lengths=(8, 4))
    worker.capture((8, 4))
    assert len(device.captured) == 2
    assert set(worker.counters().values()) == set(worker.usage().values()) == {0}
    assert not worker._cache.bytes_used
    driver = StageDriver(worker, device.stream("test"))
    driver.open("a")
    for index, length in enumerate((3, 2)):
        item = MediaItem(index=index, key=str(index), batch_key=0, length=length)
        driver.feed_host("a", Payload(item, {"x": torch.full((length,), 1.0 + index)}))
    driver.end("a")
    driver.settle(device)
    sums = [tensors_of(produced.payload)["sum"].tolist() for produced in driver.produced["a"]]
    assert sums == [[1.0, 2.0, 3.0], [2.0, 4.0]]
