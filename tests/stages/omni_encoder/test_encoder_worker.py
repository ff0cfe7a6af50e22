"""The encoder stage, driven by hand-made messages."""

import pytest
import torch

from omni.connector import Ref
from omni.device import COMPLETED, Device
from omni.device.cpu import CpuDevice
from omni.payload import PageSlice, Payload
from omni.stage import Done, Failed, Outbound, Produced
from omni_encoder.inputs import Encoded, MediaItem
from omni_encoder.options import EncoderOptions
from omni_encoder.worker import EncoderWorker
from tests.support.devices import QueuedDevice
from tests.support.stage_driver import StageDriver
from tests.support.tower import POISON, Tower


class Bench(StageDriver):
    def __init__(self, device: Device, **options: int) -> None:
        self.device = device
        self.tower = Tower()
        self.encoder = EncoderWorker("tower", device, self.tower, EncoderOptions(**options))
        super().__init__(self.encoder, device.stream("test"))

    def results(self, request_id: str) -> dict[int, torch.Tensor]:
        """The request's `sum` outputs by item index."""
        found = {}
        for message in self.produced.get(request_id, []):
            assert isinstance(message.payload.meta, Encoded)
            assert message.ready.done()
            tensor = message.payload.tensors["sum"]
            assert isinstance(tensor, torch.Tensor)
            found[message.payload.meta.index] = tensor
        return found


def media(index: int, values: list[float], batch_key: int = 0, field: str = "") -> Payload:
    item = MediaItem(index=index, key=str(values), batch_key=batch_key, length=len(values), field=field)
    return Payload(item, {"x": torch.tensor(values), "grid": torch.tensor([len(values)])})


def test_gives_each_item_its_output_then_ends() -> None:
    bench = Bench(CpuDevice())
    bench.open("a", "b")
    bench.feed_host("a", media(0, [1.0, 2.0]))
    bench.feed_host("b", media(0, [5.0]))
    bench.feed_host("a", media(1, [3.0, 3.0, 3.0]))
    bench.end("a", "b")
    bench.settle(bench.device)
    assert {i: t.tolist() for i, t in bench.results("a").items()} == {0: [1.0, 3.0], 1: [3.0, 6.0, 9.0]}
    assert bench.results("b")[0].tolist() == [5.0]
    assert bench.ends == {
        "a": Done("a", "stop", {"items": 2, "cached": 0}),
        "b": Done("b", "stop", {"items": 1, "cached": 0}),
    }
    assert bench.tower.batches == [3]
    assert not bench.held


def test_a_request_without_items_ends() -> None:
    bench = Bench(CpuDevice())
    bench.open("a", sources=("frontend", "other"))
    bench.end("a")
    bench.settle(bench.device)
    assert not bench.ends
    bench.end("a", source="other")
    bench.settle(bench.device)
    assert bench.ends == {"a": Done("a", "stop", {"items": 0, "cached": 0})}


def test_batches_keep_to_key_count_and_length() -> None:
    bench = Bench(CpuDevice(), max_batch_items=3, max_batch_length=6)
    bench.open("a")
    for index, (count, key) in enumerate([(1, 0), (1, 1), (1, 0), (1, 0), (1, 0), (6, 1), (4, 1), (2, 1)]):
        bench.feed_host("a", media(index, [index + 1.0] * count, key))
    bench.end("a")
    bench.settle(bench.device)
    # Three of key 0; of key 1 the first with those that fit beside it; the fourth of key 0; what leaves no room, alone.
    assert bench.tower.batches == [3, 2, 1, 1, 1]
    assert sorted(bench.results("a")) == list(range(8))


def test_equal_content_is_encoded_once_in_flight_and_later() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a", "b", "c")
    bench.feed_host("a", media(0, [1.0, 2.0]))
    bench.feed_host("a", media(1, [1.0, 2.0]))
    bench.tick()
    bench.feed_host("b", media(0, [1.0, 2.0]))
    bench.tick()
    assert not bench.produced
    device.synchronize()
    bench.tick()
    bench.feed_host("c", media(4, [1.0, 2.0]))
    bench.end("a", "b", "c")
    bench.settle(device)
    assert bench.tower.batches == [1]
    assert {i: list(bench.results(i)) for i in "abc"} == {"a": [0, 1], "b": [0], "c": [4]}
    assert [bench.ends[i] for i in "abc"] == [
        Done("a", "stop", {"items": 2, "cached": 1}),
        Done("b", "stop", {"items": 1, "cached": 1}),
        Done("c", "stop", {"items": 1, "cached": 1}),
    ]


def test_the_cache_stays_within_its_bytes_and_drops_the_least_recent() -> None:
    bench = Bench(CpuDevice(), cache_bytes=2 * 16)  # an item of two floats takes 8 + 8 bytes
    first, second, third, huge = [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0] * 20

    def encoded_anew(values: list[float]) -> bool:
        before = len(bench.tower.batches)
        bench.open(name := f"r{len(bench.ends)}")
        bench.feed_host(name, media(0, values))
        bench.end(name)
        bench.settle(bench.device)
        assert bench.encoder.cache_bytes_used <= 32
        return len(bench.tower.batches) > before

    assert [encoded_anew(v) for v in (first, second, first)] == [True, True, False]
    assert encoded_anew(third)
    assert [encoded_anew(v) for v in (first, third)] == [False, False]
    assert encoded_anew(second)
    assert [encoded_anew(huge), encoded_anew(huge)] == [True, True]
    bench.encoder.close()
    assert bench.encoder.cache_bytes_used == 0


def test_outputs_share_no_memory_with_their_batch() -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    bench.feed_host("a", media(0, [1.0, 2.0]))
    bench.feed_host("a", media(1, [3.0]))
    bench.settle(bench.device)
    doubled = [message.payload.tensors["doubled"] for message in bench.produced["a"]]
    assert [t.untyped_storage().nbytes() for t in doubled if isinstance(t, torch.Tensor)] == [8, 4]
    assert bench.encoder.cache_bytes_used == 24


def test_outputs_stay_until_the_last_reader_is_through() -> None:
    device = QueuedDevice()
    bench = Bench(device, cache_bytes=0)
    bench.open("a")
    bench.feed_host("a", media(0, [1.0]))
    bench.end("a")
    bench.tick()
    device.synchronize()
    bench.worker.tick()
    (produced, done) = bench.worker.outbox
    assert isinstance(done, Done)
    stream = device.stream("consumer")
    ref = bench.connector.send(produced.payload, produced.ready, stream)
    produced.add(ref)
    produced.close()
    device.launch(stream, lambda: None)
    after = device.record(stream)
    bench.connector.release(ref, after)
    bench.worker.tick()
    assert bench.held == {"payloads": 1}
    device.synchronize()
    bench.worker.tick()
    assert not bench.held


@pytest.mark.plants_faults
def test_a_failing_item_fails_its_requests_only() -> None:
    bench = Bench(CpuDevice())
    bench.open("good", "bad", "also bad", "shares")
    bench.feed_host("good", media(0, [1.0]))
    bench.feed_host("bad", media(0, [POISON]))
    bench.feed_host("also bad", media(0, [7.0]))
    bench.feed_host("also bad", media(1, [POISON]))
    bench.feed_host("shares", media(0, [7.0]))
    bench.end("good", "bad", "shares")
    bench.settle(bench.device)
    assert {i for i, end in bench.ends.items() if isinstance(end, Failed)} == {"bad", "also bad"}
    assert isinstance(failed := bench.ends["bad"], Failed)
    assert "stage 'tower' failed while encoding its media" in str(failed.error)
    assert "poisoned" in str(failed.error)
    assert bench.results("good")[0].tolist() == [1.0]
    assert bench.results("shares")[0].tolist() == [7.0]
    assert not bench.held


@pytest.mark.parametrize(
    "payload",
    [Payload(Encoded(index=0)), Payload(media(0, [1.0]).meta, {"x": PageSlice(torch.zeros(1, 1, 1), [])})],  # type: ignore[arg-type]
    ids=["meta", "pages"],
)
def test_a_foreign_input_fails_the_request_and_is_let_go(payload: Payload) -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed("a", payload)
    bench.settle(bench.device)
    assert isinstance(bench.ends["a"], Failed)
    assert ref.freed
    assert not bench.held


def test_a_lent_feature_is_read_when_ready_and_released_after_the_batch() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    producer = device.stream("producer")
    payload = media(0, [1.0, 2.0])
    payload.tensors["x"].zero_()  # type: ignore[union-attr]
    device.launch(producer, lambda: payload.tensors["x"].fill_(4.0))  # type: ignore[union-attr]
    bench.open("a")
    ref = bench.feed("a", payload, device.record(producer))
    bench.end("a")
    bench.tick()
    assert not [s for s in device.streams if s.name == "tower" and s.queue]
    device.run({"producer"})
    bench.tick()
    assert not ref.freed
    bench.settle(device)
    assert ref.freed
    assert bench.results("a")[0].tolist() == [4.0, 8.0]


@pytest.mark.parametrize("moment", range(9))
def test_an_abort_at_any_moment_frees_everything(moment: int) -> None:
    device = QueuedDevice()
    bench = Bench(device, max_batch_items=1)
    bench.open("a", "b")
    refs = [bench.feed("a", media(0, [1.0])), bench.feed("a", media(1, [2.0])), bench.feed("b", media(0, [2.0]))]
    bench.end("b")
    for step in range(moment):
        if step % 2:
            device.run(operations=2)
        else:
            bench.tick()
    bench.abort("a")
    bench.settle(device)
    assert bench.ends == {"b": Done("b", "stop", {"items": 1, "cached": 1})}
    assert bench.results("b")[0].tolist() == [2.0]
    assert all(ref.freed for ref in refs)
    assert not bench.held


def test_what_nobody_waits_for_any_more_is_not_encoded() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a", "b")
    unready = device.record(device.stream("producer"))
    mine, shared = bench.feed("a", media(0, [1.0]), unready), bench.feed("a", media(1, [2.0]), unready)
    bench.feed_host("b", media(0, [2.0]))
    bench.abort("a")
    bench.tick()
    assert mine.freed
    assert not shared.freed
    assert bench.held == {"requests": 1, "items": 1}
    bench.end("b")
    bench.settle(device)
    assert bench.tower.batches == [1]
    assert shared.freed
    assert bench.results("b")[0].tolist() == [2.0]


def test_input_for_a_request_that_is_gone_is_let_go() -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    bench.abort("a")
    ref = bench.feed("a", media(0, [1.0]))
    bench.settle(bench.device)
    assert ref.freed
    assert not bench.held
    assert not bench.produced


@pytest.mark.parametrize("option", ["max_batch_items", "max_batch_length"])
def test_options_are_checked(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1"):
        EncoderOptions(**{option: 0})
    with pytest.raises(ValueError, match="cache_bytes"):
        EncoderOptions(cache_bytes=-1)


def test_a_paused_request_starts_no_encode_and_gets_nothing_from_the_cache() -> None:
    bench = Bench(CpuDevice())
    bench.open("seen", "a")
    bench.feed_host("seen", media(0, [9.0]))
    bench.end("seen")
    bench.settle(bench.device)
    bench.pause("a")
    bench.feed_host("a", media(0, [1.0]))
    bench.feed_host("a", media(1, [9.0]))
    bench.end("a")
    bench.settle(bench.device)
    assert bench.tower.batches == [1]
    assert "a" not in bench.produced
    bench.resume("a")
    bench.settle(bench.device)
    assert {i: t.tolist() for i, t in bench.results("a").items()} == {0: [1.0], 1: [9.0]}
    assert bench.ends["a"] == Done("a", "stop", {"items": 2, "cached": 1})
    assert not bench.held


def test_what_is_on_the_device_at_a_pause_still_comes() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a")
    bench.feed_host("a", media(0, [1.0]))
    bench.tick()
    bench.pause("a")
    bench.settle(device)
    assert list(bench.results("a")) == [0]


def test_a_job_that_somebody_else_waits_for_runs_for_all() -> None:
    bench = Bench(CpuDevice())
    bench.open("a", "b")
    bench.pause("a")
    for name in "ab":
        bench.feed_host(name, media(0, [1.0]))
    bench.end("a", "b")
    bench.settle(bench.device)
    assert sorted(bench.ends) == ["a", "b"]
    assert bench.tower.batches == [1]


def test_an_abort_while_paused_leaves_nothing() -> None:
    bench = Bench(CpuDevice())
    bench.open("seen", "a")
    bench.feed_host("seen", media(0, [9.0]))
    bench.settle(bench.device)
    bench.pause("a")
    bench.feed_host("a", media(0, [1.0]))
    bench.feed_host("a", media(1, [9.0]))
    bench.abort("a", "seen")
    bench.settle(bench.device)
    assert not bench.held


def test_equal_media_of_different_salts_share_nothing() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    for name, salt in {"a": "x", "b": "y", "later": "x", "stranger": "z"}.items():
        bench.open(name, cache_salt=salt)
    for name in ("a", "b"):
        bench.feed_host(name, media(0, [1.0]))
    bench.settle(device)
    for name in ("later", "stranger"):
        bench.feed_host(name, media(0, [1.0]))
    bench.end("a", "b", "later", "stranger")
    bench.settle(device)
    assert {name: end.counts["cached"] for name, end in bench.ends.items() if isinstance(end, Done)} == {
        "a": 0,
        "b": 0,
        "later": 1,
        "stranger": 0,
    }
    assert bench.encoder.counters() == {"batches": 2, "encoded": 3, "cached": 1, "retries": 0}


def test_the_lowest_rank_is_encoded_first() -> None:
    device = QueuedDevice()
    bench = Bench(device, max_batch_items=1)
    ranks = {"late": (1, 0), "b": (0, 2), "a": (0, 1), "urgent": (-1, 3)}
    for name, rank in ranks.items():
        bench.open(name, rank=rank)
        bench.feed_host(name, media(0, [float(len(name)), float(rank[1])]))
    bench.end(*ranks)
    bench.settle(device)
    assert list(bench.ends) == ["urgent", "a", "b", "late"]


def test_an_item_longer_than_a_batch_is_refused() -> None:
    bench = Bench(CpuDevice(), max_batch_length=3)
    bench.open("a", "b", "c")
    of_a_message = media(4, [1.0] * 5, field="messages[0].content[1].image_url")
    bench.feed_host("a", of_a_message)
    bench.feed_host("b", media(0, [1.0] * 3))
    bench.feed_host("c", media(4, [1.0] * 5))
    bench.end("a", "b", "c")
    bench.settle(bench.device)
    problem = "becomes 5 embeddings, and tower encodes 3 at once; use a smaller one or raise tower.max_batch_length"
    for name, field in (("a", "messages[0].content[1].image_url"), ("c", "media[4]")):
        failed = bench.ends[name]
        assert isinstance(failed, Failed)
        assert str(failed.error) == f"{field}: {problem}"
    assert bench.ends["b"] == Done("b", "stop", {"items": 1, "cached": 0})


class SlowConsumer(Bench):
    """lent: references to outputs that nobody has released."""

    def __init__(self, device: Device, **options: int) -> None:
        super().__init__(device, **options)
        self.lent: list[Ref] = []

    def release_lent(self) -> None:
        while self.lent:
            self.connector.release(self.lent.pop(), COMPLETED)

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced):
            self.lent.append(self.connector.send(message.payload, message.ready, self._stream))
            message.add(self.lent[-1])
        super()._take(message)


def test_while_much_is_held_only_the_request_served_first_gets_more() -> None:
    """16 bytes may be held; each item's output takes 8."""
    bench = SlowConsumer(CpuDevice(), held_bytes=16, cache_bytes=0)
    bench.open("late", rank=(0, 2))
    bench.open("early", rank=(0, 1))
    for index in range(3):
        bench.feed_host("late", media(index, [1.0 + index, 0.0]))
    bench.settle(bench.device)
    assert sorted(bench.results("late")) == [0, 1, 2], "one batch, whatever it adds up to"
    bench.feed_host("late", media(3, [9.0, 0.0]))
    bench.settle(bench.device)
    assert sorted(bench.results("late")) == [0, 1, 2, 3], "nobody is before it"
    for index in range(2):
        bench.feed_host("early", media(index, [5.0 + index, 0.0]))
        bench.settle(bench.device)
        bench.feed_host("late", media(4 + index, [7.0 + index, 0.0]))
        bench.settle(bench.device)
    assert sorted(bench.results("early")) == [0, 1], "it is before all that something is held for"
    assert sorted(bench.results("late")) == [0, 1, 2, 3], "now somebody is before it"
    assert bench.encoder.usage()["items"] == 2
    bench.release_lent()
    bench.settle(bench.device)
    assert sorted(bench.results("late")) == [0, 1, 2, 3, 4, 5]
