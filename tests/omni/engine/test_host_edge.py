"""An edge whose consumer asks for host memory, in an engine: under pressure, with late streams, and while requests leave."""

import gc
from pathlib import Path

import msgspec
import pytest

from omni.connector import EdgeEnd
from omni.device import SyncCheck, sync_guard
from omni.device.cuda import CudaDevice
from omni.engine import check_pipeline
from omni.engine.host import HostReceiver
from omni.engine.peers import EngineEdges, OpenEdge
from omni.errors import ConfigError
from omni.pipeline import Edge, Pipeline, validate
from omni.testing import LaunchGuard
from omni.testing.simulation.device import SimulatedDevice
from omni_local.connector import LocalConnector
from tests.omni.engine.hidden_engine import HiddenEngine
from tests.support.hidden_family import HOST_READER, READER, WRITER, hidden_plugins, write_checkpoint
from tests.support.resources import records
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

EDGE = f"{WRITER}->{HOST_READER}"
HOST = f"{EDGE}-host"
PROMPTS = [[(5 * place * place + 13 * index) % 61 for place in range(4 + 3 * index)] for index in range(6)]
REQUESTS = [(prompt, [0, len(prompt) - 1]) for prompt in PROMPTS]
TOKENS = 9


def test_only_the_edge_that_asks_is_brought_into_host_memory() -> None:
    device = SimulatedDevice()
    edges = [Edge(producer="a", consumer="b"), Edge(producer="a", consumer="c", memory="host")]
    opened = [OpenEdge(edge, LocalConnector(), "", "") for edge in edges]
    ends = EngineEdges("", opened, lambda edge: EdgeEnd(edge.name, device, edge.pool_bytes))
    assert not isinstance(ends.receiver("a->b", ""), HostReceiver)
    assert isinstance(ends.receiver("a->c", ""), HostReceiver)
    assert [stream.name for stream in device.streams] == ["a->c-host"]


def test_another_memory_is_refused_by_name(tmp_path: Path) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=[HOST_READER]))
    edge = msgspec.structs.replace(engine.plan.pipeline.edges[0], memory="disk")
    bad: Pipeline = msgspec.structs.replace(engine.plan.pipeline, edges=(edge,))
    with pytest.raises(ConfigError, match=r"pipeline.edges\[0\].memory: 'disk' .* use one of device, host"):
        validate(bad)
    assert check_pipeline(engine.plan.pipeline, hidden_plugins()).pipeline.edges[0].memory == "host"


def test_device_memory_is_touched_in_phases_alone(tmp_path: Path) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, width=4096, readers=[HOST_READER, READER]))
    results = engine.submit_all(REQUESTS, TOKENS)
    with LaunchGuard(engine.device) as guard:
        while not engine.engine.idle:
            engine.tick()
    assert "gather_rows" in guard.launched
    engine.expect_all(REQUESTS, results, TOKENS)


def test_the_host_waits_for_no_copy(tmp_path: Path) -> None:
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=[HOST_READER, READER]), {"host_reader.max_num_seqs": 1})
    results = engine.submit_all(REQUESTS, TOKENS)
    with sync_guard(engine.device, SyncCheck.ERROR):
        engine.run()
    engine.expect_all(REQUESTS, results, TOKENS)


def test_prompts_larger_than_a_slot_come_in_pieces(tmp_path: Path) -> None:
    device = SimulatedDevice(3)
    engine = HiddenEngine(write_checkpoint(tmp_path, width=4096, readers=[HOST_READER]), device=device)
    prompt = [(11 * place) % 61 for place in range(80)]
    payload = [place for place in range(80) if place % 20]
    result = engine.submit("a", prompt, payload=payload, max_tokens=4)
    engine.simulate().run()
    engine.expect(result, prompt, payload)
    (stream,) = (stream for stream in device.streams if stream.name == HOST)
    copies = [phase for phase in stream.ran if phase != "copy_upload"]
    assert len(copies) == 5 + 4, "76 rows of 16 KiB take five pieces of 256 KiB"
    device.assert_no_races()


def test_more_requests_than_run_and_than_slots_all_come_to_their_end(tmp_path: Path) -> None:
    """Requests that wait to run would have all slots, without other memory."""
    settings = {"host_reader.max_num_seqs": 1, "host_reader.every": 3, "writer.max_num_seqs": 12}
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=[HOST_READER], credit=8), settings)
    prompts = [[index, 3, 5] for index in range(12)]
    results = [engine.submit(str(index), prompt, max_tokens=20) for index, prompt in enumerate(prompts)]
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, engine.engine.usage()[HOST_READER]["leases"])
        return False

    engine.run(until=look)
    assert most > 60, "more than there are slots"
    for prompt, result in zip(prompts, results, strict=True):
        engine.expect(result, prompt)


@pytest.mark.gpu
def test_rows_come_whole_from_a_gpu(tmp_path: Path) -> None:
    settings = {
        "writer.num_blocks": 10,
        "writer.max_model_len": 36,
        "host_reader.max_num_seqs": 2,
        "host_reader.every": 3,
    }
    engine = HiddenEngine(write_checkpoint(tmp_path, width=4096, readers=[HOST_READER, READER]), settings, CudaDevice())
    results = engine.submit_all(REQUESTS, TOKENS)
    engine.run()
    engine.expect_all(REQUESTS, results, TOKENS)


@pytest.mark.parametrize("seed", few(2, range(12), SLOW))
def test_requests_that_leave_hold_nothing_and_harm_no_other(tmp_path: Path, seed: int) -> None:
    before = records()  # of engines that other tests of the process may still hold
    device = SimulatedDevice(seed)
    settings = {
        "writer.num_blocks": 10,
        "writer.max_model_len": 36,
        "writer.max_in_flight": 1 + seed % 3,
        "host_reader.every": 1 + seed % 5,
        "host_reader.max_num_seqs": 2,
    }
    engine = HiddenEngine(write_checkpoint(tmp_path, readers=[HOST_READER, READER]), settings, device)
    results = engine.submit_all(REQUESTS, TOKENS)
    simulation = engine.simulate()
    for index in range(0, len(PROMPTS), 2):
        simulation.sometime(120, lambda index=index: engine.leave(str(index)))  # type: ignore[misc]
    simulation.run()
    engine.expect_all(REQUESTS, results, TOKENS)
    device.assert_no_races()
    engine.assert_free()
    del simulation
    gc.collect()
    left = records() - before
    assert not {"Lease", "Produced", "HostPending", "LocalRef", "LocalPending", "OutRoute", "InRoute"} & set(left)
