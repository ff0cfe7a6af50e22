"""Device rows that condition decode steps: in order, gathered once, let go of, whatever else happens."""

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.device import Device
from omni.errors import InputError, OmniError, StageError
from omni.payload import PageSlice, Payload
from omni.stage import Done
from omni_ar.inputs import MultimodalEmbedding, Placeholder, StepInputs
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.profile import run_largest_steps
from tests.stages.omni_ar.row_feeder import PAD, Late, RowFeeder, random_pages
from tests.support.ar_driver import TEXT, ArDriver, plain_prompt
from tests.support.devices import CountingDevice, StirredDevice
from tests.support.listener import Listener, WordlessListener, answered
from tests.support.small_codec import SmallCodec, codec_prompt
from tests.support.stage_driver import SOURCE

WIDTH = 8
MODEL = Listener(WIDTH)
PROMPTS = [[(7 * place + 5 * index) % 53 for place in range(2 + 3 * index)] for index in range(5)]


def options(**changes: object) -> ArOptions:
    return ArOptions(**({"max_num_seqs": 4, "block_size": 3} | changes))


def feeder(
    model: Listener = MODEL, device: Device | None = None, captured: bool = False, **changes: object
) -> RowFeeder:
    driver = ArDriver(model, device, options(**changes), captured=captured)
    return RowFeeder(driver, random_pages(WIDTH), len(model.shape.step_columns))


def expected(feed: RowFeeder, index: int, max_tokens: int, model: Listener = MODEL) -> list[int]:
    with torch.inference_mode():
        return answered(model, PROMPTS[index], feed.heard[str(index)], PAD, max_tokens)


def assert_over(feed: RowFeeder) -> None:
    assert not feed.driver.held
    assert all(given.taken and given.ref.freed for given in feed.lent)


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("blocks", [None, 11], ids=["room", "few blocks"])
def test_answers_are_those_of_full_recomputation(ahead: int, captured: bool, blocks: int | None):
    device = CountingDevice()
    sizes = {"graph_batch_sizes": (2, 4), "graph_chunk_sizes": (5, 40)}
    feed = feeder(device=device, captured=captured, max_in_flight=ahead, num_blocks=blocks, **sizes)
    for index in range(5):
        name = str(index)
        feed.open(name, PROMPTS[index], max_tokens=14, rank=(9 - index, index))
        feed.rows(name, [1, 2, 3], [index, 9, 4 * index])
        feed.driver.tick()
    for index in range(5):
        name = str(index)
        feed.texts(name, [4])
        feed.driver.tick()
        feed.tensor(name, [5, 6], torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(index)))
        feed.rows(name, [7], [index + 20])
        feed.texts(name, [8])
        feed.end(name)
        feed.driver.tick()
    feed.driver.run()
    for index in range(5):
        assert feed.driver.tokens(str(index)) == expected(feed, index, 14)
    assert_over(feed)
    assert (feed.driver.counter("preemptions") > 0) == (blocks is not None)
    assert device.launches["gather_rows"] <= 10, "nothing is gathered again when it runs again"
    assert not captured or device.replays["ar-decode-4"]


def test_what_conditions_matters_and_every_place_is_its_own():
    """What the others show by equality could be blind: a row's exchange changes what is said."""
    said = set()
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2], [4, 1, 2, 3]):
        feed = feeder()
        feed.pages *= 20
        feed.open("0", PROMPTS[0], max_tokens=14)
        feed.rows("0", [1] * 4, order)
        feed.end("0")
        feed.driver.run()
        assert feed.driver.tokens("0") == expected(feed, 0, 14)
        said.add(tuple(feed.driver.tokens("0")))
    assert len(said) == 4


@pytest.mark.parametrize("seed", range(3))
def test_late_streams_change_nothing(seed: int):
    device = StirredDevice(seed)
    feed = feeder(device=device, captured=seed == 2, max_in_flight=1 + seed, num_blocks=11)
    for index in range(5):
        feed.open(str(index), PROMPTS[index], max_tokens=12)
        for step in range(6):
            feed.rows(str(index), [step], [(5 * index + step) % 32])
            feed.driver.tick()
        feed.end(str(index))
    feed.driver.run()
    for index in range(5):
        assert feed.driver.tokens(str(index)) == expected(feed, index, 12)
    assert_over(feed)
    device.assert_no_races()


def test_rows_alone_and_rows_of_all_requests_in_one_launch():
    model, device = WordlessListener(WIDTH), CountingDevice()
    feed = feeder(model, device)
    for index in range(3):
        feed.open(str(index), PROMPTS[index], max_tokens=8)
    feed.driver.run()
    for index in range(3):
        feed.rows(str(index), [0, 0], [index, 7])
        feed.rows(str(index), [0], [12])
        feed.end(str(index))
    feed.driver.run()
    assert device.launches["gather_rows"] == 1
    for index in range(3):
        heard = [(0, row_W) for _, row_W in feed.heard[str(index)]]
        with torch.inference_mode():
            assert feed.driver.tokens(str(index)) == answered(model, PROMPTS[index], heard, 0, 8)
    assert_over(feed)


def test_rows_of_another_dtype_are_converted():
    feed = feeder()
    feed.pages = feed.pages.bfloat16()
    feed.open("0", PROMPTS[0], max_tokens=8)
    feed.rows("0", [1, 2], [0, 1])
    feed.tensor("0", [3], feed.pages[1, :1])
    feed.end("0")
    feed.driver.run()
    feed.heard["0"] = [(text, row_W.float() if row_W is not None else None) for text, row_W in feed.heard["0"]]
    assert feed.driver.tokens("0") == expected(feed, 0, 8)
    assert_over(feed)


def test_steps_keep_their_order_behind_rows_that_have_not_arrived():
    feed, late = feeder(), Late()
    feed.open("0", PROMPTS[0], max_tokens=9)
    feed.rows("0", [1], [0])
    feed.rows("0", [2], [1], ready=late)
    feed.texts("0", [3])
    feed.rows("0", [4], [2])
    feed.end("0")
    feed.driver.run()
    assert feed.driver.held["leases"] == 4
    assert len(feed.driver.tokens("0")) == 2, "the second step's row is not there, and what is behind it waits"
    late.over = True
    feed.driver.run()
    assert feed.driver.tokens("0") == expected(feed, 0, 9)
    assert_over(feed)


def test_a_request_without_a_row_of_its_own_counts_against_the_credit():
    feed = feeder(max_num_seqs=1)
    for name in ("0", "1"):
        feed.open(name, PROMPTS[int(name)], max_tokens=6)
        feed.rows(name, [1, 2], [3, 4])
    feed.driver.run()
    assert feed.driver.held["leases"] == 1
    assert [given.taken for given in feed.lent] == [True, False]
    feed.end("0")
    feed.end("1")
    feed.driver.run()
    assert [feed.driver.tokens(name) for name in ("0", "1")] == [expected(feed, index, 6) for index in range(2)]
    assert_over(feed)


@pytest.mark.parametrize("embedding", [False, True])
def test_rows_that_wait_for_another_input_do_not_hold_their_producer_up(embedding: bool):
    feed = feeder()
    feed.open("0", None, max_tokens=6, sources=(SOURCE, TEXT))
    prompt = plain_prompt(PROMPTS[0])
    if embedding:
        slots = (Placeholder(name="picture", index=0, positions=np.array([1])),)
        prompt = plain_prompt(PROMPTS[0], placeholders=slots)
        feed.driver.feed_host("0", Payload(prompt))
    given = feed.rows("0", [1], [0])
    feed.driver.run()
    assert given.taken
    assert not given.ref.released
    rest = (
        Payload(MultimodalEmbedding(name="picture", index=0), {"x": torch.zeros(1, 2)})
        if embedding
        else Payload(prompt)
    )
    feed.driver.feed_host("0", rest)
    feed.driver.end("0")
    feed.end("0")
    feed.driver.run()
    assert feed.driver.tokens("0") == expected(feed, 0, 6)
    assert_over(feed)


def test_a_request_gets_no_row_before_the_producer_of_its_rows_began():
    """Else it could have the row here that the other needs, and wait there for the other's: see the pipeline's test."""
    feed = feeder(max_num_seqs=1)
    feed.open("0", PROMPTS[0], max_tokens=6, sources=(SOURCE, TEXT))
    feed.open("1", PROMPTS[1], max_tokens=6, rank=(0, 1))
    feed.driver.end("0")
    feed.driver.run()
    assert (len(feed.driver.tokens("0")), len(feed.driver.tokens("1"))) == (0, 1)
    for name in ("0", "1"):
        feed.rows(name, [1], [0])
        feed.end(name)
    feed.driver.run()
    assert [feed.driver.tokens(name) for name in ("0", "1")] == [expected(feed, index, 6) for index in range(2)]
    assert_over(feed)


def slice_of(rows: int, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> PageSlice:
    return PageSlice(torch.zeros(4, 4, width, dtype=dtype), np.arange(rows))


WRONG: dict[str, tuple[dict[str, PageSlice | Tensor], int, str]] = {
    "count": ({"rows": slice_of(3)}, 2, "step_inputs.rows: are torch.float32 [3, 8]; give torch.float32 [2, 8]"),
    "width": ({"rows": slice_of(2, 7)}, 2, "step_inputs.rows: are torch.float32 [2, 7]; give torch.float32 [2, 8]"),
    "dtype": ({"rows": slice_of(1, dtype=torch.int64)}, 1, "are torch.int64 [1, 8]; give torch.float32 [1, 8]"),
    "tensor": ({"rows": torch.zeros(2, 1, 8)}, 2, "step_inputs.rows: are torch.float32 [2, 1, 8]; give"),
    "name": ({"hidden": slice_of(1)}, 1, "step_inputs: have a tensor 'hidden'; call it 'rows'"),
    "no columns": ({"rows": slice_of(1)}, 0, "step_inputs.rows: are torch.float32 [1, 8]; give torch.float32 [0, 8]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_do_not_fit_fail_their_request_alone(name: str):
    tensors, count, message = WRONG[name]
    feed = feeder()
    for request in ("0", "1"):
        feed.open(request, PROMPTS[int(request)], max_tokens=6)
        feed.rows(request, [1], [0])
    feed.give("0", Payload(StepInputs(columns=np.ones((1, count), np.int64)), tensors))
    feed.end("1")
    feed.driver.run()
    assert_fails(feed, "0", InputError, message)
    assert feed.driver.tokens("1") == expected(feed, 1, 6)
    assert_over(feed)


def assert_fails(feed: RowFeeder, name: str, kind: type[OmniError], message: str) -> None:
    error = feed.driver.error(name)
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_model_that_takes_no_rows_says_so():
    driver = ArDriver(SmallCodec())
    feed = RowFeeder(driver, random_pages(WIDTH))
    driver.speak("0", codec_prompt([1, 2], [3, 4]), max_tokens=3)
    feed.rows("0", [1], [0])
    driver.run()
    assert_fails(feed, "0", InputError, "step_inputs.rows: are given, and the model of text takes none; leave them out")
    assert_over(feed)


@pytest.mark.parametrize(("rows", "max_tokens"), [(15, 17), (16, 17), (30, 17), (30, 5), (30, 1)])
def test_every_step_has_room_for_its_row_and_unread_rows_are_released(rows: int, max_tokens: int):
    feed = feeder(max_model_len=18, max_num_seqs=2)
    for name in ("0", "1"):
        feed.open(name, [int(name)], max_tokens=max_tokens)
        for first in range(0, rows, 10):
            part = range(first, min(rows, first + 10))
            feed.rows(name, list(part), [place + int(name) for place in part])
        feed.end(name)
    feed.driver.run()
    for name in ("0", "1"):
        with torch.inference_mode():
            wanted = answered(MODEL, [int(name)], feed.heard[name], PAD, max_tokens)
        assert feed.driver.tokens(name) == wanted
    assert_over(feed)


@pytest.mark.parametrize("seated", [True, False])
@pytest.mark.parametrize("how", ["abort", "close", "ends early"])
def test_whatever_waits_is_let_go_of(seated: bool, how: str):
    feed = feeder(max_num_seqs=1)
    names = ["0"] if seated else ["1", "0"]
    for name in names:
        feed.open(name, PROMPTS[int(name)], max_tokens=6)
    feed.driver.run()
    feed.rows("0", [1], [0])
    late = feed.rows("0", [1, 2], [0, 1], ready=Late())
    feed.texts("0", [3])
    feed.driver.run()
    assert feed.driver.held["leases"] == 2 if seated else 3
    assert not late.ref.released
    match how:
        case "abort":
            feed.driver.abort(*names)
            feed.driver.run()
        case "close":
            feed.driver.worker.close()
        case "ends early":
            feed.driver.end(*names, source=TEXT)
            feed.driver.run()
            assert_fails(feed, "0", StageError, "it ended before the last step's conditioning")
    assert_over(feed)


def test_a_request_that_ends_by_itself_lets_go_of_what_waits():
    feed = feeder()
    feed.open("0", PROMPTS[0], max_tokens=2)
    feed.rows("0", [1], [0])
    feed.rows("0", [2], [1], ready=Late())
    feed.driver.run()
    assert isinstance(feed.driver.ends["0"], Done)
    assert feed.driver.tokens("0") == expected(feed, 0, 2)
    assert_over(feed)


@pytest.mark.parametrize("phase", ["gather_rows", "copy_upload"])
def test_a_copy_that_cannot_be_launched_fails_those_it_was_for(phase: str, monkeypatch: pytest.MonkeyPatch):
    device = CountingDevice()
    feed = feeder(device=device)
    other = RowFeeder(feed.driver, random_pages(WIDTH, seed=1))
    for name in ("0", "1"):
        feed.open(name, PROMPTS[int(name)], max_tokens=6)
    feed.driver.run()
    launch = CountingDevice.launch

    def failing(self, stream, called, *buffers):
        if called.__name__ == phase and (phase == "copy_upload" or buffers[1] is feed.pages):
            raise ValueError("a fault")
        launch(self, stream, called, *buffers)

    feed.rows("0", [1], [0])
    other.rows("1", [1], [0])
    feed.end("0")
    with monkeypatch.context() as patch:
        patch.setattr(CountingDevice, "launch", failing)
        feed.driver.tick()
    feed.driver.run()
    assert_fails(feed, "0", StageError, "gathering what conditions its steps")
    if phase == "copy_upload":
        assert_fails(other, "1", StageError, "ValueError: a fault")
    else:
        other.end("1")
        feed.driver.run()
        assert feed.driver.tokens("1") == expected(other, 1, 6)
    assert_over(feed)
    assert_over(other)


def test_the_largest_steps_of_a_conditioned_model_can_be_measured():
    device = CountingDevice()
    driver = ArDriver(MODEL, device, options())
    with torch.inference_mode():
        run_largest_steps(driver.worker._runner, MODEL.shape, Limits.of("text", options(), MODEL.shape))
    assert device.launches["run_forward"] == 3


def test_memory_for_rows_is_there_only_where_a_model_takes_them():
    kept = [
        ArDriver(model, None, options(max_model_len=length)).worker._runner.conditioning.shape
        for model, length in ((MODEL, 18), (MODEL, 2), (SmallCodec(), 18))
    ]
    assert kept == [(4 * 16 + 1, WIDTH), (1, WIDTH), (1, 0)]
