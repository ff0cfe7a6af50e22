"""Every wait in the code, left out in turn: each is found out by a wrong result, a race, a hang or an error, so each is needed.

A wait that is new needs a row here: traffic that fails without it. If there is none, the wait is superfluous.
"""

from functools import cache
from typing import Literal

import pytest

from omni.testing import SimulatedDevice, find_waits
from tests.omni.testing import two_readers
from tests.support import host_bench
from tests.support.entry_points import REPOSITORY
from tests.support.mixed_traffic import make_world, run_seed
from tests.support.tiers import few

pytestmark = pytest.mark.thorough

Traffic = Literal["hidden", "codec", "omni", "pooled", "apart", "pooled codec", "host", "readers"]
"""Two pipelines of small models, the tiny Qwen3-Omni, the first two through pools and in two engines, an edge into host
memory, and two readers of payload that moves."""

WAITS: dict[str, tuple[Traffic, int]] = {
    "omni.device.download.Downloader.send#1": ("codec", 10),
    "omni.connector.pieces.CopiedRef.freed#1": ("apart", 10),
    "omni.connector.pieces.CopiedRef.may_copy#1": ("pooled codec", 6),
    "omni.connector.pieces.CopiedRef.may_copy#2": ("apart", 20),
    "omni.connector.pool.receiver.PoolReceiver.tick#1": ("pooled", 10),
    "omni.connector.pool.sender.PoolRef.pieces#1": ("pooled", 10),
    "omni.device.ring.HostSlot.free#1": ("hidden", 10),
    "omni.engine.host._arrived#1": ("host", 40),
    "omni.engine.host._arrived#2": ("host", 40),
    "omni.engine.host.SlotPool.acquire#1": ("host", 40),
    "omni.payload.payload.PageSlice.gathered#1": ("readers", 1),
    "omni.payload.payload._All.done#1": ("readers", 1),
    "omni.stage.messages.Feed.arrived#1": ("codec", 10),
    "omni.stage.messages.Feed.arrived#2": ("hidden", 20),
    "omni_ar.run.blocks.reclaim._Leaving.free#1": ("readers", 1),
    "omni_ar.run.output_processor.OutputProcessor.poll#1": ("codec", 10),
    "omni_ar.run.output_processor.OutputProcessor.poll#2": ("hidden", 10),
    "omni_ar.run.host_processors.HostProcessorExecutor.poll#1": ("hidden", 10),
    "omni_ar.run.codes.CodePrediction.written#1": ("codec", 10),
    "omni_encoder.worker.EncoderWorker.advance#1": ("omni", 4),
    "omni_local.connector.LocalRef.freed#1": ("codec", 10),
}
"""By name: the traffic that finds out, and within how many of its seeds."""

OF_THREADS = {"omni.device.host_work._FutureTask.done#1", "omni.media.download._Worker._begin#1"}
"""Ask a thread, which no simulated device has: tests/omni/test_host_work.py, tests/omni/media/test_download.py."""

OF_TIMERS = {"omni.device.cuda.CudaTimer.probe#1", "omni.timeline.recorder.Recorder.poll#1"}
"""Ask a device's timer when something ran, which no simulated device has: tests/omni/timeline."""

OF_RANKS = {
    "omni.parallel.rank_memory._exchange#1",
    "omni.parallel.rendezvous._all_gather_text#1",
    "omni.parallel.torch_group.open_communicator#1",
    "omni.parallel.torch_group._Transfer.arrived#1",
    "omni.parallel.torch_group._Transfer.wait#1",
    "omni_ar.run.pipeline.PendingTokens.arrived#1",
    "omni_ar.run.pipeline.PendingTokens.done#1",
    "omni_ar.run.pipeline.PendingTokens.done#2",
    "omni_ar.run.transfer_slots.TransferEvent.done#1",
    "omni_ar.run.transfer_slots.SlotRing.drain#1",
    "omni_ar.run.transfer_slots.SlotRing.fill#1",
    "omni_ar.run.follower.FollowerWorker._release#1",
    "omni_ar.run.pipeline.HiddenTransfers.receive.take#1",
    "omni_ar.run.pipeline.ReceivedTokens._accept.accept#1",
    "omni_ar.run.pipeline.ReceivedTokens.awaited#1",
    "omni_ar.run.transfers.InputTransfers.transfer#1",
}
"""Ask a store of ranks, or wait for another rank: tests/omni/parallel, tests/stages/omni_ar/test_ranks.py and
test_simulated_ranks.py, which leaves them out."""

OF_TASKS = "omni.serve."
"""Where the waits ask tasks of asyncio and futures of threads, never a device: tests/omni/serve."""


def run(traffic: Traffic, seed: int, without: str | None = None) -> SimulatedDevice:
    """Raises whatever goes wrong."""
    device = SimulatedDevice(None if traffic == "readers" else seed, without=without)
    match traffic:
        case "host":
            host_bench.play(device, seed)
            device.assert_no_races()
        case "readers":
            two_readers.play(device)
            device.assert_no_races()
        case _:
            run_seed(make_world(traffic), seed, device)
    return device


@cache
def clean(traffic: Traffic, seed: int) -> SimulatedDevice:
    """The same with every wait in its place."""
    return run(traffic, seed)


def found_out(wait: str, traffic: Traffic, seed: int) -> bool:
    try:
        run(traffic, seed, wait)
    except Exception:
        return True
    return False


def packages() -> list[str]:
    """All of the source."""
    roots = (REPOSITORY / name for name in ("stages", "connectors", "plugins"))
    return ["omni", *(path.parent.name for root in roots for path in root.glob("*/__init__.py"))]


def test_every_wait_of_the_source_has_its_row():
    found = {wait for wait in find_waits(*packages()) if not wait.startswith(OF_TASKS)}
    assert found == WAITS.keys() | OF_THREADS | OF_TIMERS | OF_RANKS


@pytest.mark.parametrize("wait", few(1, WAITS))
def test_removing_a_wait_has_a_visible_effect(wait: str):
    traffic, seeds = WAITS[wait]
    caught = next((seed for seed in range(seeds) if found_out(wait, traffic, seed)), None)
    assert caught is not None, f"{seeds} seeds of {traffic} are none the worse without {wait}: is it superfluous?"
    assert clean(traffic, caught).waits.counts[wait].asked, "with it, nothing goes wrong"
