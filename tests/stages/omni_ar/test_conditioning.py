"""Device rows that condition decode steps: in order, gathered once, released, whatever else happens."""

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.errors import InputError, OmniError, StageError
from omni.payload import PageSlice, Payload
from omni.stage import Done, PayloadCopier
from omni.testing.simulation.late import QueuedDevice
from omni.testing.stages.driver import SOURCE
from omni_ar.inputs import MultimodalEmbedding, Placeholder, StepInputs
from omni_ar.model import NextTokens
from omni_ar.options import ArOptions
from omni_ar.run import stores
from omni_ar.run.limits import Limits
from omni_ar.run.profile import run_largest_steps
from tests.stages.omni_ar.row_feeder import MODEL, WIDTH, Late, RowFeeder, feeder, random_pages
from tests.support.ar_driver import TEXT, ArDriver, plain_prompt
from tests.support.conditioned import ConditionedText, WordlessConditionedText
from tests.support.devices import CountingDevice
from tests.support.small_codec import SmallCodec, codec_prompt

PROMPTS = [[(7 * place + 5 * index) % 53 for place in range(2 + 3 * index)] for index in range(5)]
ALL = "01234"


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("blocks", [None, 11], ids=["enough blocks", "few blocks"])
def test_answers_are_those_of_full_recomputation(ahead: int, captured: bool, blocks: int | None):
    device = CountingDevice()
    changes = {"max_in_flight": ahead, "num_blocks": blocks, "graph_batch_sizes": (2, 4), "graph_chunk_sizes": (5, 40)}
    feed = feeder(MODEL, device, captured, **changes)
    for index, name in enumerate(ALL):
        feed.open(name, PROMPTS[index], 14, order=(9 - index, index))
        feed.rows(name, [1, 2, 3], [index, 9, 4 * index])
        feed.driver.tick()
    for index, name in enumerate(ALL):
        feed.texts(name, [4])
        feed.driver.tick()
        feed.tensor(name, [5, 6], torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(index)))
        feed.rows(name, [7], [index + 20])
        feed.texts(name, [8])
        feed.end(name)
        feed.driver.tick()
    feed.check(*ALL)
    assert (feed.driver.counter("preemptions") > 0) == (blocks is not None)
    assert device.launches["gather_rows"] <= 10, "nothing is gathered again when it runs again"
    assert not captured or device.replays["ar-decode-4"]


def test_exchanged_conditioning_rows_change_the_answer():
    """The equality of the other tests could be blind: exchanged rows change the answer."""
    answers = set()
    for order in ([0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2], [4, 1, 2, 3]):
        feed = feeder()
        feed.pages *= 20
        feed.open("0", PROMPTS[0], 14)
        feed.rows("0", [1] * 4, order)
        feed.end("0")
        feed.check("0")
        answers.add(tuple(feed.tokens("0")))
    assert len(answers) == 4


def test_rows_alone_and_rows_of_all_requests_in_one_launch():
    device = CountingDevice()
    feed = feeder(WordlessConditionedText(WIDTH), device)
    for name in "012":
        feed.open(name, PROMPTS[int(name)], 8)
    feed.driver.run()
    for name in "012":
        feed.rows(name, [0, 0], [int(name), 7])
        feed.rows(name, [0], [12])
        feed.end(name)
    feed.check("0", "1", "2")
    assert device.launches["gather_rows"] == 1


def test_rows_of_another_dtype_are_converted():
    feed = feeder()
    feed.pages = feed.pages.bfloat16()
    feed.open("0", PROMPTS[0], 8)
    feed.rows("0", [1, 2], [0, 1])
    feed.tensor("0", [3], feed.pages[1, :1])
    feed.end("0")
    feed.heard["0"] = [(text, row_W.float() if row_W is not None else None) for text, row_W in feed.heard["0"]]
    feed.check("0")


def test_steps_keep_their_order_behind_rows_that_have_not_arrived():
    feed, late = feeder(), Late()
    feed.open("0", PROMPTS[0], 9)
    feed.rows("0", [1], [0])
    feed.rows("0", [2], [1], ready=late)
    feed.texts("0", [3])
    feed.rows("0", [4], [2])
    feed.end("0")
    feed.driver.run()
    assert feed.driver.held["leases"] == 4
    assert len(feed.tokens("0")) == 2, "the second step's row is not there, and the inputs behind it wait"
    late.finished = True
    feed.check("0")


def test_a_request_without_a_row_of_its_own_counts_against_the_credit():
    feed = feeder(max_num_seqs=1)
    for name in "01":
        feed.open(name, PROMPTS[int(name)], 6)
        feed.rows(name, [1, 2], [3, 4])
    feed.driver.run()
    assert feed.driver.held["leases"] == 1
    assert [given.taken for given in feed.lent] == [True, False]
    feed.end("0", "1")
    feed.check("0", "1")


@pytest.mark.parametrize("embedding", [False, True])
def test_rows_that_wait_for_another_input_do_not_pause_their_producer(embedding: bool):
    feed = feeder()
    slots = (Placeholder(name="picture", index=0, positions=np.array([1])),) if embedding else ()
    inputs = [Payload(plain_prompt(PROMPTS[0], placeholders=slots))]
    if embedding:
        inputs.append(Payload(MultimodalEmbedding(name="picture", index=0), {"x": torch.zeros(1, 2)}))
    feed.driver.open("0", sources=(SOURCE, TEXT))
    for payload in inputs[:-1]:
        feed.driver.feed_host("0", payload)
    given = feed.rows("0", [1], [0])
    feed.driver.run()
    assert given.taken
    assert not given.ref.released
    feed.driver.feed_host("0", inputs[-1])
    feed.driver.end("0")
    feed.end("0")
    feed.driver.run()
    feed.asked["0"] = PROMPTS[0], len(feed.tokens("0"))
    feed.check("0")


def test_a_request_gets_no_row_before_the_producer_of_its_rows_began():
    """Else it could hold the row here that the other request needs, and wait there for the other's."""
    feed = feeder(max_num_seqs=1)
    feed.open("0", PROMPTS[0], 6, sources=(SOURCE, TEXT))
    feed.open("1", PROMPTS[1], 6, order=(0, 1))
    feed.driver.run()
    assert (len(feed.tokens("0")), len(feed.tokens("1"))) == (0, 1)
    for name in "01":
        feed.rows(name, [1], [0])
        feed.end(name)
    feed.check("0", "1")


def slice_of(rows: int, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> PageSlice:
    return PageSlice(torch.zeros(4, 4, width, dtype=dtype), np.arange(rows))


WRONG: dict[str, tuple[dict[str, PageSlice | Tensor], int, str]] = {
    "count": ({"vectors": slice_of(3)}, 2, "step_inputs.vectors: are torch.float32 [3, 8]; give torch.float32 [2, 8]"),
    "width": (
        {"vectors": slice_of(2, 7)},
        2,
        "step_inputs.vectors: are torch.float32 [2, 7]; give torch.float32 [2, 8]",
    ),
    "dtype": ({"vectors": slice_of(1, dtype=torch.int64)}, 1, "are torch.int64 [1, 8]; give torch.float32 [1, 8]"),
    "tensor": ({"vectors": torch.zeros(2, 1, 8)}, 2, "step_inputs.vectors: are torch.float32 [2, 1, 8]; give"),
    "name": ({"hidden": slice_of(1)}, 1, "step_inputs: have a tensor 'hidden'; call it 'vectors'"),
    "no columns": (
        {"vectors": slice_of(1)},
        0,
        "step_inputs.vectors: are torch.float32 [1, 8]; give torch.float32 [0, 8]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_do_not_fit_fail_their_request_alone(name: str):
    tensors, count, message = WRONG[name]
    feed = feeder()
    for request in "01":
        feed.open(request, PROMPTS[int(request)], 6)
        feed.rows(request, [1], [0])
    feed.give("0", Payload(StepInputs(columns=np.ones((1, count), np.int64)), tensors))
    feed.end("1")
    feed.check("1")
    assert_fails(feed, "0", InputError, message)


def assert_fails(feed: RowFeeder, name: str, kind: type[OmniError], message: str) -> None:
    error = feed.driver.error(name)
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_model_that_takes_no_rows_refuses_them():
    feed = RowFeeder(ArDriver(SmallCodec()), random_pages())
    feed.driver.speak("0", codec_prompt([1, 2], [3, 4]), max_tokens=3)
    feed.rows("0", [1], [0])
    feed.check()
    assert_fails(
        feed, "0", InputError, "step_inputs.vectors: are given, and the model of text takes none; leave them out"
    )


@pytest.mark.parametrize(("rows", "max_tokens"), [(15, 17), (16, 17), (30, 17), (30, 5), (30, 1)])
def test_every_step_has_an_entry_and_unread_rows_are_released(rows: int, max_tokens: int):
    feed = feeder(max_model_len=18, max_num_seqs=2)
    for name in "01":
        feed.open(name, [int(name)], max_tokens)
        for first in range(0, rows, 10):
            part = range(first, min(rows, first + 10))
            feed.rows(name, list(part), [place + int(name) for place in part])
        feed.end(name)
    feed.check("0", "1")


@pytest.mark.parametrize("has_row", [True, False])
@pytest.mark.parametrize("how", ["abort", "close", "ends early"])
def test_waiting_inputs_are_released_with_their_request(has_row: bool, how: str):
    feed = feeder(max_num_seqs=1)
    names = ["0"] if has_row else ["1", "0"]
    for name in names:
        feed.open(name, PROMPTS[int(name)], 6)
    feed.driver.run()
    feed.rows("0", [1], [0])
    late = feed.rows("0", [1, 2], [0, 1], ready=Late())
    feed.texts("0", [3])
    feed.driver.run()
    assert feed.driver.held["leases"] == 2 if has_row else 3
    assert not late.ref.released
    match how:
        case "abort":
            feed.driver.abort(*names)
        case "close":
            feed.driver.worker.close()
        case "ends early":
            feed.driver.end(*names, source=TEXT)
            feed.driver.run()
            assert_fails(feed, "0", StageError, "its inputs ended before the last step's conditioning")
    feed.check()


def test_a_request_that_ends_by_itself_releases_its_waiting_inputs():
    feed = feeder()
    feed.open("0", PROMPTS[0], 2)
    feed.rows("0", [1], [0])
    feed.rows("0", [2], [1], ready=Late())
    feed.check("0")
    assert isinstance(feed.driver.ends["0"], Done)


@pytest.mark.parametrize("phase", ["gather_rows", "copy_upload"])
def test_a_copy_that_cannot_be_launched_fails_its_requests(phase: str, monkeypatch: pytest.MonkeyPatch):
    feed = feeder(MODEL, CountingDevice())
    other = RowFeeder(feed.driver, random_pages(seed=1))
    feed.open("0", PROMPTS[0], 6)
    other.open("1", PROMPTS[1], 6)
    feed.driver.run()
    launch = CountingDevice.launch

    def failing(self, stream, called, *buffers):
        if called.__name__ == phase and (phase == "copy_upload" or buffers[1] is feed.pages):
            raise ValueError("a fault")
        launch(self, stream, called, *buffers)

    feed.rows("0", [1, 2], [0, 2])
    other.rows("1", [1, 2], [0, 2])
    feed.end("0")
    with monkeypatch.context() as patch:
        patch.setattr(CountingDevice, "launch", failing)
        feed.driver.tick()
    feed.driver.run()
    assert_fails(feed, "0", StageError, "gathering its conditioning")
    if phase == "copy_upload":
        assert_fails(other, "1", StageError, "ValueError: a fault")
        other.check()
    else:
        other.end("1")
        other.check("1")
    feed.check()


def test_the_largest_steps_of_a_conditioned_model_can_be_measured():
    device, options = CountingDevice(), ArOptions(max_num_seqs=4, block_size=3)
    driver = ArDriver(MODEL, device, options)
    with torch.inference_mode():
        run_largest_steps(driver.worker._runner, MODEL.shape, Limits.of("text", options, MODEL.shape))
    assert device.launches["run_forward"] == 3


def test_memory_for_rows_is_there_only_where_a_model_takes_them():
    kept = [
        ArDriver(model, None, ArOptions(max_num_seqs=4, max_model_len=length)).worker._runner.conditioning.shape
        for model, length in ((MODEL, 18), (MODEL, 2), (SmallCodec(), 18))
    ]
    assert kept == [(4 * 16 + 1, WIDTH), (1, WIDTH), (1, 0)]


def test_rows_beyond_the_limit_of_a_tick_wait_for_the_next(monkeypatch: pytest.MonkeyPatch):
    """A tick copies as many as one request may have; two requests bring more together."""
    monkeypatch.setattr(stores, "_AT_ONCE", 1)
    feed = feeder(max_num_seqs=2, max_model_len=13)
    for name in "01":
        feed.open(name, [1, 2], 11)
    feed.driver.run()
    for name in "01":
        feed.rows(name, range(10), range(10))
        feed.end(name)
    feed.check("0", "1")


def test_steps_without_a_row_take_none_of_a_tick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stores, "_AT_ONCE", 1)
    device = CountingDevice()
    feed = feeder(MODEL, device, max_num_seqs=2, max_model_len=6)  # 4 rows in a tick
    for name in "01":
        feed.open(name, [1], 5)
    feed.driver.run()
    for texts in ([1], [2], [3]):
        feed.texts("0", texts) if texts == [2] else feed.rows("0", texts, texts)
    feed.rows("1", [1, 2], [4, 5])
    feed.end("0", "1")
    feed.check("0", "1")
    assert device.launches["gather_rows"] == 1


def test_a_stage_without_waiting_inputs_looks_at_no_upload(monkeypatch: pytest.MonkeyPatch):
    feed = feeder()
    feed.driver.tick()
    monkeypatch.delattr(PayloadCopier, "ready")
    assert not feed.driver.tick()


def test_rows_of_steps_that_never_come_are_released_unread():
    device = CountingDevice()
    feed = feeder(MODEL, device)
    feed.open("0", PROMPTS[1], 2)
    feed.driver.tick()
    feed.driver.pause("0")
    for texts, slots in (([1], [0]), ([2, 3], [1, 2])):
        feed.rows("0", texts, slots)
        feed.driver.tick()  # each by itself: inputs that arrive together are copied together
    feed.driver.resume("0")
    feed.end("0")
    feed.check("0")
    assert device.launches["gather_rows"] == 1, "of the one step behind the first token"


# State that outlives a step, and isolation from the state of other requests.


def test_a_preempted_request_goes_on_when_its_row_comes():
    feed, late = feeder(max_num_seqs=2, block_size=2, num_blocks=9, max_model_len=18), Late()
    feed.open("evicted", [1, 2, 3], 12, order=(1, 1))
    feed.rows("evicted", [1], [0])
    feed.rows("evicted", [2], [1], ready=late)
    feed.driver.run()
    feed.open("other", [4, 5, 6], 15)
    feed.rows("other", [3], [2])
    feed.end("other")
    feed.driver.run()
    assert feed.driver.counter("preemptions") == 1
    assert feed.driver.done("other").reason == "length"
    assert len(feed.tokens("evicted")) == 2
    late.finished = True
    feed.driver.run()
    assert len(feed.tokens("evicted")) == 3
    feed.end("evicted")
    feed.check("evicted", "other")


@pytest.mark.parametrize("model", [MODEL, WordlessConditionedText(WIDTH)])
def test_conditioned_tokens_are_no_prefix_of_a_prompt(model: ConditionedText):
    feed = feeder(model, max_num_seqs=2, block_size=2)
    prompt = [1, 2, 3, 4]
    feed.open("first", prompt, 9)
    feed.rows("first", [0] * 8, range(8))
    feed.end("first")
    feed.driver.run()
    feed.open("second", [*prompt, *feed.tokens("first")[:6]], 6)
    feed.end("second")
    feed.check("second")
    assert feed.driver.counter("cached_tokens") == len(prompt)


class Watched(ConditionedText):
    def __init__(self) -> None:
        super().__init__(WIDTH)
        self.given: list[Tensor] = []

    def embed_next(self, step: NextTokens) -> Tensor:
        self.given.append(step.vectors_RE.clone())
        return super().embed_next(step)


def test_padding_and_steps_without_a_row_are_given_zeros():
    model = Watched()
    feed = feeder(model, captured=True, graph_batch_sizes=(4,), graph_chunk_sizes=())
    model.given.clear()
    feed.open("0", [1, 2], 4)
    feed.rows("0", [1], [5])
    feed.texts("0", [1])
    feed.rows("0", [1], [6])
    feed.end("0")
    feed.driver.run()
    zeros_W = torch.zeros(WIDTH)
    rows_W = feed.pages.flatten(0, 1)
    for given_RW, wanted_W in zip(model.given, (rows_W[5], zeros_W, rows_W[6]), strict=True):
        assert torch.equal(given_RW, torch.stack([wanted_W, zeros_W, zeros_W, zeros_W]))


def test_the_slice_reports_gathers_that_are_under_way():
    """Its producer may move the rows once they are over, though another input of the payload still has a claim."""
    device = QueuedDevice()
    feed = feeder(MODEL, device)
    feed.open("0", [1, 2], 4)
    feed.driver.run()
    given = feed.rows("0", [1], [0])
    part = feed.slices[-1]
    assert part.reader.done()
    feed.driver.tick()
    assert given.ref.released
    assert not part.reader.done()
    assert not given.ref.freed
    device.synchronize()
    assert part.reader.done()
    assert given.ref.freed
