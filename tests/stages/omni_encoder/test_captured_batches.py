"""Batches that replay a captured graph, and those that do not."""

import logging
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from omni.checkpoint import Checkpoint
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.pipeline import Stage
from omni.stage import StageContext
from omni.testing.simulation.late import QueuedDevice
from omni.testing.stages.driver import StageDriver
from omni_encoder.batch import BatchEncoder
from omni_encoder.kind import LoadedEncoder
from omni_encoder.model import EncoderModel, SampleItem
from omni_encoder.options import EncoderOptions
from omni_encoder.plan import EncodePlan, EncoderInput
from tests.stages.omni_encoder.bench import Bench, media
from tests.support.tower import Tower, encode


def answers(bench: Bench, *items: list[float]) -> list[list[float]]:
    """Running sums of each, all asked for at once."""
    name = f"r{len(bench.ends)}"
    bench.ask(name, *items)
    bench.settle(bench.device)
    sums = bench.sums(name)
    return [sums[index] for index in range(len(items))]


def summed(values: list[float]) -> list[float]:
    return [sum(values[: end + 1]) for end in range(len(values))]


@pytest.mark.parametrize("make_device", [CpuDevice, QueuedDevice])
def test_a_batch_is_padded_to_the_next_captured_length(make_device: Callable[[], Device]) -> None:
    bench = Bench(make_device(), (8, 4, 2), cache_bytes=0)
    batches = [[[1.0]], [[1.0, 2.0], [5.0]], [[3.0] * 4, [7.0], [2.0, 4.0]], [[9.0] * 4], [[2.0, 1.0]]]
    for items in batches:
        assert answers(bench, *items) == [summed(values) for values in items]
    assert bench.tower.encoded == [2, 4, 8, 4, 2]
    assert bench.tower.segments == []
    assert not bench.held


@pytest.mark.parametrize("captured", [(), (8,), (4, 2)])
def test_batches_without_a_graph_are_padded_too(captured: tuple[int, ...]) -> None:
    """To the length that they would be captured at."""
    tower, device = Tower(), CpuDevice()
    encoder = BatchEncoder(device, device.stream("encode"), tower, (8, 4, 2))
    encoder.capture(captured)
    tower.encoded.clear()
    for count in (1, 3, 8, 9):
        batch = encoder.prepare([{"x": torch.ones(count)}])
        while not batch.transfer.finished:
            encoder.send(batch)
        encoder.launch(batch)
    assert tower.encoded == ([8, 8, 8, 9] if captured == (8,) else [2, 4, 8, 9])
    assert tower.segments == [(9,)]


def test_outputs_stay_when_their_graph_runs_again() -> None:
    device = QueuedDevice()
    bench = Bench(device, (4,), max_batch_items=1)
    items = [[float(value), 1.0] for value in range(2, 9)]
    assert answers(bench, *items) == [summed(values) for values in items]
    assert answers(bench, *items) == [summed(values) for values in items]
    assert bench.encoder.counters()["batches"] == len(items)
    device.assert_no_races()


@pytest.mark.parametrize(
    ("pads", "segments", "message"),
    [
        (True, [(5,), (6,)], "batches of more than 4 embeddings run uncaptured: raise tower.graph_lengths"),
        (False, [(5,), (3,), (6,)], "media that the model cannot pad run uncaptured"),
    ],
)
def test_batches_that_run_uncaptured_are_logged_once(
    pads: bool,
    segments: list[tuple[int, ...]],
    message: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(CpuDevice(), (4, 2), max_batch_items=1)
    if not pads:
        monkeypatch.setattr(bench.tower, "padded_length", lambda items: None)
    items = [[1.0] * 5, [2.0] * 3, [3.0] * 6]
    with caplog.at_level(logging.WARNING):
        assert answers(bench, *items) == [summed(values) for values in items]
    assert bench.tower.segments == segments
    assert [record.getMessage() for record in caplog.records] == [f"tower: {message}"]


def test_nothing_of_a_batch_is_left_for_the_next() -> None:
    """A sum over a masked NaN is NaN."""
    bench = Bench(CpuDevice(), (4,), cache_bytes=0)
    assert answers(bench, [1.0, float("nan"), float("nan"), 2.0])[0][0] != 1.0, "NaN behind it in its own item"
    assert answers(bench, [1.0, 2.0]) == [[1.0, 3.0]]


@pytest.mark.parametrize("lengths", [(), (9,), (7, 20)])
def test_an_item_s_outputs_are_those_it_has_alone(lengths: tuple[int, ...]) -> None:
    items = [{"x": torch.arange(count, dtype=torch.float32)} for count in (1, 4, 2)]
    together = encode(Tower(), items, lengths=lengths)
    for item, outputs in zip(items, together, strict=True):
        (alone,) = encode(Tower(), [item])
        assert outputs.keys() == alone.keys()
        assert all(torch.equal(outputs[name], alone[name]) for name in alone)
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in outputs.values())


class Doubler(EncoderModel):
    """Does not pad."""

    def plan(self, items: Sequence[Mapping[str, Tensor]], length: int | None = None) -> EncodePlan:
        parts = tuple(item["x"] for item in items)
        sizes = tuple(len(part) for part in parts)
        return EncodePlan({"x": EncoderInput((sum(sizes),), torch.float32, parts)}, sizes, sizes)

    def encode(self, inputs: Mapping[str, Tensor], segments: tuple[int, ...] | None) -> Mapping[str, Tensor]:
        return {"x": inputs["x"] * 2}

    def largest_item(self, length: int) -> SampleItem:
        return SampleItem(length, {"x": torch.zeros(length)})


def loaded(
    graphs: bool,
    model: EncoderModel | None = None,
    graph_lengths: tuple[int, ...] | None = None,
    device: Device | None = None,
) -> LoadedEncoder:
    given = EncoderOptions(max_batch_length=40, graph_lengths=graph_lengths)
    stage = Stage(name="it", kind="encoder", model="none:none", options=given)
    context = StageContext(
        stage=stage,
        options=given,
        checkpoint=Checkpoint.__new__(Checkpoint),
        device=device or CpuDevice(),
        dtype=torch.float32,
        load_format="auto",
        graphs=graphs,
    )
    return LoadedEncoder(context, model or Tower())


def test_captured_batches_read_from_fixed_memory() -> None:
    captured, plain = loaded(True, graph_lengths=(16, 40)), loaded(False, graph_lengths=(16, 40))
    # Features, float32, and owners, int64, of the larger, each from a multiple of 256 bytes.
    assert captured.footprint.fixed - plain.footprint.fixed == 256 + 40 * 8
    assert captured.measure() > 0
    worker = captured.start(0)
    assert not any(worker.usage().values())
    assert not any(worker.counters().values())


class CapturableCpu(CpuDevice):
    captures = True


def test_a_device_that_can_capture_pads_without_graphs_too() -> None:
    """So results are the same with graphs and without."""
    for device, padded in ((CapturableCpu(), 16), (CpuDevice(), 3)):
        tower = Tower()
        stage = loaded(False, tower, (16, 40), device)
        worker = stage.start(0)
        driver = StageDriver(worker, device.stream("test"))
        driver.open("a")
        driver.feed_host("a", media(0, [1.0, 2.0, 3.0]))
        driver.end("a")
        driver.settle(device)
        assert tower.encoded == [padded]


def test_a_model_that_pads_nothing_has_nothing_captured() -> None:
    stage = loaded(True, Doubler())
    assert stage.measure() > 0
    assert stage.footprint.fixed == loaded(False).footprint.fixed
    (outputs,) = encode(Doubler(), [{"x": torch.ones(3)}])
    assert outputs["x"].tolist() == [2.0] * 3
    stage.start(0).close()


def test_lengths_that_are_captured() -> None:
    assert EncoderOptions(graph_lengths=(3, 9, 3)).captured_lengths == (9, 3)
    assert EncoderOptions(graph_lengths=()).captured_lengths == ()
    assert EncoderOptions(max_batch_length=100).captured_lengths == (100, 64)
    assert EncoderOptions().captured_lengths[0] <= EncoderOptions().max_batch_length
    for lengths in ((0,), (4, 101)):
        with pytest.raises(ValueError, match="graph_lengths must be at least 1, at most max_batch_length, 100"):
            EncoderOptions(max_batch_length=100, graph_lengths=lengths)
