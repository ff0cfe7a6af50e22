"""Multimodal embeddings that arrive at a stage, on a device that is late."""

import msgspec
import numpy as np
import pytest
import torch

from omni.connector import Ref
from omni.device import COMPLETED
from omni.errors import InputError
from omni.payload import PageSlice, Payload
from omni.sampling import SamplingParams
from omni.stage import Feed, Lease
from omni.testing import SimulatedDevice
from omni_ar.inputs import MultimodalEmbedding, Placeholder, Prompt
from omni_ar.run.receivers import EmbeddingReceiver
from omni_ar.run.request import ArRequest
from omni_local.connector import LocalConnector
from tests.support.devices import QueuedDevice

PAGES = torch.randn(5, 4, 3)


class Lent:
    """An embedding message whose tensor is a slice of `PAGES`, and the producer's reference to it."""

    def __init__(self, device: QueuedDevice, index: int, slots: list[int]) -> None:
        self.slots = slots
        connector = LocalConnector()
        self.embedding = MultimodalEmbedding(name="sound", index=index)
        payload = Payload(self.embedding, {"rows": PageSlice(PAGES, np.array(slots, np.int64))})
        self.ref: Ref = connector.send(payload, COMPLETED, device.stream("transfer"))
        self.message = Feed("r", payload, COMPLETED, Lease(connector, self.ref, 1))


def receiver(device: SimulatedDevice, dtype: torch.dtype = torch.float32) -> tuple[EmbeddingReceiver, ArRequest]:
    return EmbeddingReceiver("talker", device, device.stream("ar"), 20, dtype), ArRequest("r", SamplingParams(), set())


def test_more_rows_than_one_upload_takes_come_in_several():
    device = QueuedDevice()
    embeddings, request = receiver(device)
    lent = [Lent(device, index, [index, 19 - index, 7]) for index in range(10)]
    for item in lent:
        embeddings.add(request, item.embedding, item.message)
    rounds = 0
    while embeddings.waiting:
        assert embeddings.tick()
        device.synchronize()
        rounds += 1
    assert rounds == 2
    for item in lent:
        gathered = request.embeddings["sound", item.embedding.index].tensors["rows"]
        assert torch.equal(gathered, PAGES.flatten(0, 1)[item.slots])
        assert item.ref.freed


def test_pages_are_free_after_the_gather():
    device = QueuedDevice()
    embeddings, request = receiver(device)
    lent = Lent(device, 0, [1, 2])
    embeddings.add(request, lent.embedding, lent.message)
    embeddings.tick()
    assert not lent.ref.freed
    device.synchronize()
    assert lent.ref.freed


def test_a_dropped_request_releases_embeddings_not_gathered():
    device = QueuedDevice()
    embeddings, request = receiver(device)
    lent = Lent(device, 0, [1, 2])
    embeddings.add(request, lent.embedding, lent.message)
    embeddings.drop(request)
    assert lent.ref.freed
    assert embeddings.waiting == 0


@pytest.mark.parametrize("gathered", [False, True])
def test_an_embedding_that_comes_twice_is_refused(gathered: bool):
    device = QueuedDevice()
    embeddings, request = receiver(device)
    first, second = Lent(device, 0, [1]), Lent(device, 0, [2])
    embeddings.add(request, first.embedding, first.message)
    if gathered:
        embeddings.tick()
        device.synchronize()
    with pytest.raises(InputError, match="came twice"):
        embeddings.add(request, second.embedding, second.message)
    embeddings.drop(request)
    assert first.ref.freed
    assert second.ref.freed


def test_an_embedding_longer_than_the_stage_is_refused():
    device = QueuedDevice()
    embeddings, request = receiver(device)
    lent = Lent(device, 0, [1] * 21)
    said = r"embedding\.sound\[0\]: has 21 rows, and talker takes 20; shorten the prompt or raise talker\.max_model_len"
    with pytest.raises(InputError, match=said):
        embeddings.add(request, lent.embedding, lent.message)
    embeddings.drop(request)
    assert lent.ref.freed


def test_errors_name_the_embedding_of_a_medium_by_its_field():
    """By its path in the messages, once the prompt is there."""
    device = QueuedDevice()
    embeddings, request = receiver(device)
    field = "messages[0].content[1].input_audio"
    slot = Placeholder(name="sound", index=0, positions=np.arange(4), field=field)
    request.prompt = msgspec.structs.replace(Prompt.of(np.arange(9)), placeholders=(slot,))
    lent = Lent(device, 0, [1, 2])
    embeddings.add(request, lent.embedding, lent.message)
    embeddings.tick()
    device.synchronize()
    with pytest.raises(InputError) as wrong:
        request.check_embeddings()
    assert wrong.value.field == field
    again = Lent(device, 0, [1])
    with pytest.raises(InputError, match="came twice") as twice:
        embeddings.add(request, again.embedding, again.message)
    assert twice.value.field == field
    embeddings.drop(request)


def test_an_embedding_of_pages_and_a_tensor_is_released_after_its_gather():
    device = QueuedDevice()
    embeddings, request = receiver(device)
    tensors = {"rows": PageSlice(PAGES, np.array([3, 1], np.int64)), "whole": torch.zeros(2, 1)}
    payload, connector = Payload(MultimodalEmbedding(name="sound", index=0), tensors), LocalConnector()
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    embeddings.add(
        request, MultimodalEmbedding(name="sound", index=0), Feed("r", payload, COMPLETED, Lease(connector, ref, 1))
    )
    embeddings.tick()
    request.embeddings["sound", 0].release(COMPLETED)  # no step was launched
    assert ref.released
    assert not ref.freed
    device.run({"ar"})
    assert ref.freed


@pytest.mark.parametrize("whole", [False, True], ids=["converted alone", "beside one that is read in place"])
def test_tensors_of_another_dtype_are_converted_and_released(whole: bool):
    device = QueuedDevice()
    embeddings, request = receiver(device, torch.bfloat16)
    made, ids = torch.randn(2, 3), torch.arange(2)[:, None]
    tensors: dict[str, PageSlice | torch.Tensor] = {"rows": PageSlice(PAGES, np.array([3, 1])), "made": made}
    payload = Payload(MultimodalEmbedding(name="sound", index=0), tensors | ({"ids": ids} if whole else {}))
    connector = LocalConnector()
    ref = connector.send(payload, COMPLETED, device.stream("transfer"))
    embeddings.add(
        request, MultimodalEmbedding(name="sound", index=0), Feed("r", payload, COMPLETED, Lease(connector, ref, 1))
    )
    embeddings.tick()
    assert ref.released != whole
    assert not ref.freed
    device.run({"ar"})
    assert ref.freed != whole
    taken = request.embeddings["sound", 0].tensors
    assert torch.equal(taken["rows"], PAGES.flatten(0, 1)[[3, 1]].bfloat16())
    assert torch.equal(taken["made"], made.bfloat16())
    assert not whole or taken["ids"] is ids
