"""The encoder stage, driven by hand-made messages."""

import sys
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from omni.connector import Pending
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.payload import PageSlice, Payload
from omni.stage import Done, Failed, Outbound, Produced
from omni.testing.simulation.late import QueuedDevice
from omni.testing.stages.loan import lend
from omni_encoder.inputs import Encoded
from omni_encoder.options import EncoderOptions
from omni_encoder.plan import EncodePlan
from tests.stages.omni_encoder.bench import Bench, media
from tests.support.tower import POISON, Tower


def done(request_id: str, items: int, cached: int = 0) -> Done:
    return Done(request_id, "stop", {"items": items, "cached": cached})


def test_gives_each_item_its_output_then_ends() -> None:
    bench = Bench(CpuDevice())
    bench.ask("a", [1.0, 2.0], [3.0, 3.0, 3.0])
    bench.ask("b", [5.0])
    bench.settle(bench.device)
    assert bench.sums("a") == {0: [1.0, 3.0], 1: [3.0, 6.0, 9.0]}
    assert bench.sums("b") == {0: [5.0]}
    assert bench.ends == {"a": done("a", 2), "b": done("b", 1)}
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
    assert bench.ends == {"a": done("a", 0)}


def test_batches_keep_to_key_count_and_length() -> None:
    bench = Bench(CpuDevice(), max_batch_items=3, max_batch_length=6)
    bench.open("a")
    for index, (count, key) in enumerate([(1, 0), (1, 1), (1, 0), (1, 0), (1, 0), (6, 1), (4, 1), (2, 1)]):
        bench.feed_host("a", media(index, [index + 1.0] * count, key))
    bench.end("a")
    bench.settle(bench.device)
    # Three of key 0; of key 1 the first with those that fit beside it; the fourth of key 0; what nothing fits beside, alone.
    assert bench.tower.batches == [3, 2, 1, 1, 1]
    assert sorted(bench.sums("a")) == list(range(8))


def test_equal_content_is_encoded_once_in_flight_and_later() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.ask("a", [1.0, 2.0], [1.0, 2.0])
    bench.tick()
    bench.ask("b", [1.0, 2.0])
    bench.tick()
    assert not bench.produced
    device.synchronize()
    bench.tick()
    bench.ask("c", [1.0, 2.0])
    bench.settle(device)
    assert bench.tower.batches == [1]
    assert {name: list(bench.sums(name)) for name in "abc"} == {"a": [0, 1], "b": [0], "c": [0]}
    assert bench.ends == {"a": done("a", 2, 1), "b": done("b", 1, 1), "c": done("c", 1, 1)}


def test_the_cache_stays_within_its_bytes_and_drops_the_least_recent() -> None:
    bench = Bench(CpuDevice(), cache_bytes=2 * 16)  # an item of two floats takes 8 + 8 bytes
    first, second, third, huge = [1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0] * 20

    def encoded_anew(values: list[float]) -> bool:
        before = len(bench.tower.batches)
        bench.ask(f"r{len(bench.ends)}", values)
        bench.settle(bench.device)
        assert bench.encoder._cache.bytes_used <= 32
        return len(bench.tower.batches) > before

    asked = [first, second, first, third, first, third, second, huge, huge]
    assert [encoded_anew(values) for values in asked] == [True, True, False, True, False, False, True, True, True]
    bench.encoder.close()
    assert bench.encoder._cache.bytes_used == 0


def test_outputs_share_no_memory_with_their_batch() -> None:
    bench = Bench(CpuDevice())
    bench.ask("a", [1.0, 2.0], [3.0])
    bench.settle(bench.device)
    doubled = [outputs["doubled"] for outputs in bench.outputs("a").values()]
    assert [tensor.untyped_storage().nbytes() for tensor in doubled] == [8, 4]
    assert bench.encoder._cache.bytes_used == 24


class Consumer(Bench):
    """Receives outputs. unreleased: those that it has not released."""

    def __init__(self, device: Device, **options: int) -> None:
        super().__init__(device, **options)
        self.unreleased: list[Pending] = []

    def release_all(self) -> None:
        after = self.device.record(self._stream)
        while self.unreleased:
            self.unreleased.pop().release(after)

    def _take(self, message: Outbound) -> None:
        if isinstance(message, Produced):
            ref, pending = lend(message.payload, message.ready)
            self.unreleased.append(pending)
            message.add(ref)
        super()._take(message)


def test_outputs_stay_until_the_last_reader_is_through() -> None:
    device = QueuedDevice()
    bench = Consumer(device, cache_bytes=0)
    bench.ask("a", [1.0])
    bench.settle(device)
    device.launch(bench._stream, lambda: None)
    bench.release_all()
    bench.tick()
    assert bench.held == {"payloads": 1}
    bench.settle(device)
    assert not bench.held


@pytest.mark.plants_faults
@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_a_failing_item_fails_its_requests_only(raised: type[BaseException]) -> None:
    bench = Bench(CpuDevice())
    bench.tower.poisoned = raised
    bench.ask("good", [1.0])
    bench.ask("bad", [POISON])
    bench.open("also bad")
    bench.feed_host("also bad", media(0, [7.0]))
    bench.feed_host("also bad", media(1, [POISON]))
    bench.ask("shares", [7.0])
    bench.settle(bench.device)
    assert {i for i, end in bench.ends.items() if isinstance(end, Failed)} == {"bad", "also bad"}
    assert "stage 'tower' failed while encoding its media" in bench.error("bad")
    assert f": {raised.__name__}: poisoned" in bench.error("bad")
    assert bench.sums("good") == {0: [1.0]}
    assert bench.sums("shares") == {0: [7.0]}
    assert bench.encoder.counters()["retries"] == 1
    assert not bench.held


def test_a_tower_that_exits_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(CpuDevice())
    monkeypatch.setattr(bench.tower, "encode", lambda inputs, segments: sys.exit(3))
    bench.ask("bad", [1.0])
    bench.settle(bench.device)
    assert "SystemExit: 3" in bench.error("bad")
    assert not bench.held


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (lambda items, length=None: None, "gave None: return an EncodePlan"),
        (lambda items, length=None: Tower().plan([*items, *items], length), "planned 2 outputs for 1 items"),
    ],
)
def test_a_plan_that_is_none_is_the_model_s_fault(
    plan: Callable[..., EncodePlan], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(CpuDevice())
    monkeypatch.setattr(bench.tower, "plan", plan)
    bench.ask("bad", [1.0])
    bench.settle(bench.device)
    assert problem in bench.error("bad")
    assert f"({__file__}:" in bench.error("bad")
    assert not bench.held


@pytest.mark.parametrize(
    "payload",
    [
        Payload(Encoded(index=0)),
        Payload(media(0, [1.0]).meta, {"x": PageSlice(torch.zeros(1, 1, 1), np.empty(0, np.int64))}),
    ],
    ids=["meta", "pages"],
)
def test_a_foreign_input_fails_the_request_and_is_released(payload: Payload) -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    ref = bench.feed("a", payload)
    bench.settle(bench.device)
    assert isinstance(bench.ends["a"], Failed)
    assert ref.freed
    assert not bench.held


def test_a_feature_is_read_when_ready_and_released_after_its_batch() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    producer = device.stream("producer")
    features = torch.zeros(2)

    def write() -> None:
        features.fill_(4.0)

    device.launch(producer, write)
    bench.open("a")
    ref = bench.feed("a", Payload(media(0, [1.0, 2.0]).meta, {"x": features}), device.record(producer))
    bench.end("a")
    bench.tick()
    assert not [s for s in device.streams if s.name == "tower" and s.queue]
    device.run({"producer"})
    bench.tick()
    freed = [ref.freed]
    bench.settle(device)
    assert [*freed, ref.freed] == [False, True]
    assert bench.sums("a") == {0: [4.0, 8.0]}


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
    assert bench.ends == {"b": done("b", 1, 1)}
    assert bench.sums("b") == {0: [2.0]}
    assert all(ref.freed for ref in refs)
    assert not bench.held


def test_an_item_without_requests_is_not_encoded() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.open("a")
    unready = device.record(device.stream("producer"))
    refs = [bench.feed("a", media(0, [1.0]), unready), bench.feed("a", media(1, [2.0]), unready)]
    bench.ask("b", [2.0])
    bench.abort("a")
    bench.tick()
    assert [ref.freed for ref in refs] == [True, False]
    assert bench.held == {"requests": 1, "items": 1}
    bench.settle(device)
    assert bench.tower.batches == [1]
    assert [ref.freed for ref in refs] == [True, True]
    assert bench.sums("b") == {0: [2.0]}


def test_input_for_a_request_that_is_gone_is_released() -> None:
    bench = Bench(CpuDevice())
    bench.open("a")
    bench.abort("a")
    ref = bench.feed("a", media(0, [1.0]))
    bench.settle(bench.device)
    assert ref.freed
    assert not bench.held
    assert not bench.produced


@pytest.mark.parametrize(
    ("option", "least"), [("max_batch_items", 1), ("max_batch_length", 1), ("cache_bytes", 0), ("held_bytes", 1)]
)
def test_options_are_checked(option: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least {least}"):
        msgspec.structs.replace(EncoderOptions(), **{option: least - 1})


def test_a_paused_request_starts_no_encode_and_gets_nothing_from_the_cache() -> None:
    bench = Bench(CpuDevice())
    bench.ask("seen", [9.0])
    bench.settle(bench.device)
    for name in ("a", "gone"):
        bench.open(name)
        bench.pause(name)
        bench.feed_host(name, media(0, [1.0]))
        bench.feed_host(name, media(1, [9.0]))
    bench.abort("gone")
    bench.end("a")
    bench.settle(bench.device)
    assert bench.tower.batches == [1]
    assert "a" not in bench.produced
    bench.resume("a")
    bench.settle(bench.device)
    assert bench.sums("a") == {0: [1.0], 1: [9.0]}
    assert bench.ends["a"] == done("a", 2, 1)
    assert not bench.held


def test_outputs_on_the_device_at_a_pause_still_arrive() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.ask("a", [1.0])
    bench.tick()
    bench.pause("a")
    bench.settle(device)
    assert list(bench.sums("a")) == [0]


def test_a_job_shared_with_a_paused_request_runs_for_both() -> None:
    bench = Bench(CpuDevice())
    bench.ask("a", [1.0])
    bench.pause("a")
    bench.ask("b", [1.0])
    bench.settle(bench.device)
    assert sorted(bench.ends) == ["a", "b"]
    assert bench.tower.batches == [1]


def test_equal_media_of_different_salts_share_nothing() -> None:
    device = QueuedDevice()
    bench = Bench(device)
    bench.ask("a", [1.0], cache_salt="x")
    bench.ask("b", [1.0], cache_salt="y")
    bench.settle(device)
    bench.ask("later", [1.0], cache_salt="x")
    bench.ask("stranger", [1.0], cache_salt="z")
    bench.settle(device)
    assert bench.ends == {name: done(name, 1, int(name == "later")) for name in ("a", "b", "later", "stranger")}
    assert bench.encoder.counters() == {"batches": 2, "encoded": 3, "cached": 1, "retries": 0}


def test_media_are_encoded_in_serving_order() -> None:
    device = QueuedDevice()
    bench = Bench(device, max_batch_items=1)
    for name, order in {"late": (1, 0), "b": (0, 2), "a": (0, 1), "urgent": (-1, 3)}.items():
        bench.ask(name, [float(len(name)), float(order[1])], order=order)
    bench.settle(device)
    assert list(bench.ends) == ["urgent", "a", "b", "late"]


def test_an_item_longer_than_a_batch_is_refused() -> None:
    bench = Bench(CpuDevice(), max_batch_length=3)
    bench.open("a", "c")
    bench.feed_host("a", media(4, [1.0] * 5, field="messages[0].content[1].image_url"))
    bench.feed_host("c", media(4, [1.0] * 5))
    bench.ask("b", [1.0] * 3)
    bench.settle(bench.device)
    problem = "becomes 5 embeddings, and tower encodes 3 at once; use a smaller one, or raise tower.max_batch_length"
    assert bench.error("a") == f"messages[0].content[1].image_url: {problem}"
    assert bench.error("c") == f"media[4]: {problem}"
    assert bench.ends["b"] == done("b", 1)


def test_while_much_is_held_only_the_request_served_first_gets_more() -> None:
    """16 bytes may be held; each item's output takes 8."""
    bench = Consumer(CpuDevice(), held_bytes=16, cache_bytes=0)
    bench.open("late", order=(0, 2))
    bench.open("early", order=(0, 1))
    for index in range(3):
        bench.feed_host("late", media(index, [1.0 + index, 0.0]))
    bench.settle(bench.device)
    assert sorted(bench.sums("late")) == [0, 1, 2], "one batch, whatever it adds up to"
    bench.feed_host("late", media(3, [9.0, 0.0]))
    bench.settle(bench.device)
    assert sorted(bench.sums("late")) == [0, 1, 2, 3], "no request is before it"
    for index in range(2):
        bench.feed_host("early", media(index, [5.0 + index, 0.0]))
        bench.settle(bench.device)
        bench.feed_host("late", media(4 + index, [7.0 + index, 0.0]))
        bench.settle(bench.device)
    assert sorted(bench.sums("early")) == [0, 1], "it is before all that something is held for"
    assert sorted(bench.sums("late")) == [0, 1, 2, 3], "now a request is before it"
    assert bench.encoder.usage()["items"] == 2
    bench.release_all()
    bench.settle(bench.device)
    assert sorted(bench.sums("late")) == [0, 1, 2, 3, 4, 5]
