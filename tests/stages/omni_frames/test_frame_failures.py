"""Copies of frames that fail half-way, on a device that is late: what was launched still reads the producer's memory."""

import numpy as np
import pytest
import torch

from omni.device import COMPLETED
from omni.payload import PageSlice
from omni.stage import Failed, Feed, lend
from support.faults import LateFaultyDevice
from support.frame_bench import PAGE, frames, random_codes
from support.wavemaker import Bench


@pytest.mark.parametrize("phase", ["copy_upload", "gather_frames"])
def test_a_producer_learns_of_gathers_of_a_payload_that_inputs_share(phase: str) -> None:
    """Of two payloads the second cannot be copied: neither's rows may be written again before what was launched is over."""
    device = LateFaultyDevice(None)
    bench = Bench(device, max_num_seqs=2)
    bench.open("a", "b")
    parts, refs = [], []
    for name in "ab":
        codes = random_codes(PAGE)
        part = PageSlice(torch.from_numpy(codes)[None].clone(), np.arange(PAGE))
        payload = frames(part)
        ref = bench.connector.send(payload, COMPLETED, device.stream("producer"))
        mine, _other = lend(bench.connector, ref, 2)
        bench.worker.inbox.append(Feed(name, payload, COMPLETED, mine))
        parts.append(part)
        refs.append(ref)
    device.fail(phase, int(phase == "gather_frames"), after=True)
    bench.tick()
    failed = {name for name, end in bench.ends.items() if isinstance(end, Failed)}
    assert failed == ({"a", "b"} if phase == "copy_upload" else {"b"})
    assert not any(ref.released for ref in refs)
    readers = [part.relocate(part.pages.clone(), part.slots, COMPLETED) for part in parts]
    assert [reader.done() for reader in readers] == [phase == "copy_upload"] * 2, "with no places, nothing is gathered"
    device.run({"vocoder"})
    assert all(reader.done() for reader in readers)
