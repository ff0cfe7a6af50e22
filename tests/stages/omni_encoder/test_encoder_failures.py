"""Batches of media that fail half-way on a device that is late: work launched before still runs, and reads its inputs."""

import functools

import pytest
import torch
from torch import Tensor

from omni.connector import Ref
from omni.device import Device
from omni.payload import Payload
from omni.stage import Failed, Outbound, Produced
from omni.testing.faults import FaultyStirredDevice, Owner
from omni.testing.stages.loan import lend
from omni_encoder.batch import FeatureCopy, PieceUploader, copy_features
from omni_encoder.inputs import Encoded
from omni_encoder.plan import EncodePlan
from tests.stages.omni_encoder.bench import Bench, media
from tests.support.faults import idle, simulate

pytestmark = pytest.mark.plants_faults

ITEMS = {name: [float(number + 1)] * (3 + 2 * number) for number, name in enumerate("abcd")}
SEEDS = range(4)


class Consumer(Bench):
    """Copies its inputs on a stream of its own. found: by request."""

    def __init__(self, device: Device, **options: int) -> None:
        super().__init__(device, cache_bytes=0, **options)
        self.owner = Owner(device)
        self.found: dict[str, Tensor] = {}
        self._consumer = device.stream("consumer")

    def begin(self, name: str, values: list[float]) -> Ref:
        self.open(name)
        features = torch.tensor(values)
        ref = self.feed(name, Payload(media(0, values).meta, {"x": features}))
        self.owner.lend(ref, features)
        self.end(name)
        return ref

    def turn(self) -> bool:
        return self.tick() | self.owner.reuse()

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced) and isinstance(message.payload.meta, Encoded):
            tensor = message.payload.tensors["sum"]
            assert isinstance(tensor, Tensor)
            ref, pending = lend(message.payload, message.ready)
            message.add(ref)
            found = self.found[message.request_id] = torch.empty(tensor.shape)
            self.device.launch(self._consumer, take, found, tensor)
            pending.release(self.device.record(self._consumer))
        super()._take(message)


def take(found: Tensor, tensor: Tensor) -> None:
    found.copy_(tensor, non_blocking=True)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are on the device, and copied there: of the CPU's the host would take them for its own."""
    begin = PieceUploader.begin

    def copies(self: PieceUploader, plan: EncodePlan, buffer: Tensor) -> FeatureCopy:
        transfer = begin(self, plan, buffer)
        for _, start, item in plan.placed():
            for part in item.parts:
                if isinstance(part, Tensor):
                    target = buffer[start : start + part.nbytes]
                    self._device.launch(self._stream, copy_features, target, part.view(torch.uint8))
                start += part.nbytes
        return transfer

    monkeypatch.setattr(PieceUploader, "begin", copies)


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("phase", ["copy_features", "encode_batch", "take_outputs"])
def test_a_batch_that_fails_runs_again_one_by_one(phase: str, number: int, after: bool) -> None:
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        bench = Consumer(device, max_batch_items=2)

        def finished(bench: Consumer = bench) -> bool:
            return len(bench.ends) == len(ITEMS) and not bench.owner.waiting and idle(bench.encoder)

        simulation = simulate(device, bench.turn, finished)
        for name, values in ITEMS.items():
            simulation.sometime(15, functools.partial(bench.begin, name, values), f"begin {name}")
        device.fail(phase, number, after=after)
        simulation.run()
        assert device.failures == 1
        failed = {name for name, end in bench.ends.items() if isinstance(end, Failed)}
        assert len(failed) <= 1
        device.assert_no_races()
        for name, values in ITEMS.items():
            assert name in failed or torch.equal(bench.found[name], torch.tensor(values).cumsum(0))


@pytest.mark.usefixtures("on_device")
def test_features_of_a_failed_batch_are_freed_after_its_launches() -> None:
    """The copy of its features may still run when no request needs the job any more."""
    device = FaultyStirredDevice(None)
    bench = Consumer(device)
    refs = [bench.begin(name, ITEMS[name]) for name in "ab"]
    device.fail("encode_batch", 0, after=False)
    while not device.failures:
        bench.turn()
    bench.abort("a", "b")
    bench.turn()
    assert [ref.released for ref in refs] == [True, True]
    assert not any(ref.freed for ref in refs)
    while not all(ref.freed for ref in refs):
        device.run(operations=1)
        bench.turn()
    device.synchronize()
    bench.turn()
    assert not bench.owner.waiting
    device.assert_no_races()
