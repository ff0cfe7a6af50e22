"""Multimodal embeddings that arrive at a stage, on a device that is late."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.connector import Ref
from omni.device import COMPLETED
from omni.errors import InputError, StageError
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Feed, Lease
from omni.testing.simulation.late import QueuedDevice
from omni.testing.stages.loan import lend
from omni_ar.inputs import MultimodalEmbedding, Placeholder
from omni_ar.run.request import ArRequest
from omni_ar.run.stores import EmbeddingStore
from tests.support.ar_driver import plain_prompt

PAGES = torch.randn(5, 4, 3)


class Bench:
    """A receiver of a stage of 20 tokens, and a request to which a producer feeds embeddings called "sound"."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.device = QueuedDevice()
        self.receiver = EmbeddingStore("talker", self.device, self.device.stream("ar"), 20, dtype)
        self.request = ArRequest("r", SamplingParams(), set())
        self.refs: list[Ref] = []
        """The producer's references."""

    def add(self, index: int, slots: list[int], tensors: Mapping[str, Tensor] = {}) -> None:
        """Rows of `PAGES`, and other tensors."""
        meta = MultimodalEmbedding(name="sound", index=index)
        payload = Payload(meta, {"rows": PageSlice(PAGES, np.array(slots, np.int64)), **tensors})
        ref, pending = lend(payload)
        self.refs.append(ref)
        self.receiver.add(self.request, meta, Feed("r", payload, COMPLETED, Lease(pending, [payload])))

    def receive(self) -> None:
        self.receiver.tick()
        self.device.synchronize()

    def taken(self, index: int) -> Mapping[str, Tensor]:
        return self.request.embeddings["sound", index].tensors

    def assert_freed(self) -> None:
        assert all(ref.freed for ref in self.refs)
        assert self.receiver.waiting == 0


def test_more_rows_than_one_upload_takes_come_in_several():
    bench = Bench()
    slots = [[index, 19 - index, 7] for index in range(10)]
    for index, some in enumerate(slots):
        bench.add(index, some)
    rounds = 0
    while bench.receiver.waiting:
        bench.receive()
        rounds += 1
    assert rounds == 2
    for index, some in enumerate(slots):
        assert torch.equal(bench.taken(index)["rows"], PAGES.flatten(0, 1)[some])
    bench.assert_freed()


def test_pages_are_free_after_the_gather():
    bench = Bench()
    bench.add(0, [1, 2])
    bench.receiver.tick()
    assert not bench.refs[0].freed
    bench.device.synchronize()
    bench.assert_freed()


def test_a_dropped_request_releases_embeddings_not_gathered():
    bench = Bench()
    bench.add(0, [1, 2])
    bench.receiver.drop(bench.request)
    bench.assert_freed()


@pytest.mark.parametrize("gathered", [False, True])
def test_an_embedding_that_comes_twice_is_refused(gathered: bool):
    bench = Bench()
    bench.add(0, [1])
    if gathered:
        bench.receive()
    with pytest.raises(InputError, match="was given twice"):
        bench.add(0, [2])
    bench.receiver.drop(bench.request)
    bench.assert_freed()


def test_an_embedding_longer_than_the_stage_is_refused():
    bench = Bench()
    said = r"embedding\.sound\[0\]: has 21 vectors, and talker takes 20; shorten the prompt, or raise talker\.max_model_len"
    with pytest.raises(InputError, match=said):
        bench.add(0, [1] * 21)
    bench.receiver.drop(bench.request)
    bench.assert_freed()


def test_errors_name_the_embedding_of_a_medium_by_its_field():
    """By its path in the messages, once the prompt is there."""
    bench = Bench()
    field = "messages[0].content[1].input_audio"
    slot = Placeholder(name="sound", index=0, positions=np.arange(4), field=field)
    bench.request.prompt = plain_prompt(range(9), placeholders=(slot,))
    bench.add(0, [1, 2])
    bench.receive()
    problem = (
        r"'text' failed while taking its input: messages\[0\]\.content\[1\]\.input_audio: tensor .* 2 vectors for 4 "
    )
    with pytest.raises(StageError, match=problem):
        bench.request.check_embeddings("text")
    with pytest.raises(InputError, match="was given twice") as twice:
        bench.add(0, [1])
    assert twice.value.field == field


def test_an_embedding_of_pages_and_a_tensor_is_released_after_its_gather():
    bench = Bench()
    bench.add(0, [3, 1], {"whole": torch.zeros(2, 1)})
    bench.receiver.tick()
    bench.request.embeddings["sound", 0].release(COMPLETED)  # no step was launched
    assert bench.refs[0].released
    assert not bench.refs[0].freed
    bench.device.run({"ar"})
    bench.assert_freed()


@pytest.mark.parametrize("whole", [False, True], ids=["converted alone", "beside one that is read in place"])
def test_tensors_of_another_dtype_are_converted_and_released(whole: bool):
    bench = Bench(torch.bfloat16)
    made, ids = torch.randn(2, 3), torch.arange(2)[:, None]
    bench.add(0, [3, 1], {"made": made, **({"ids": ids} if whole else {})})
    (ref,) = bench.refs
    bench.receiver.tick()
    assert ref.released != whole
    assert not ref.freed
    bench.device.run({"ar"})
    assert ref.freed != whole
    taken = bench.taken(0)
    assert torch.equal(taken["rows"], PAGES.flatten(0, 1)[[3, 1]].bfloat16())
    assert torch.equal(taken["made"], made.bfloat16())
    assert not whole or taken["ids"] is ids
