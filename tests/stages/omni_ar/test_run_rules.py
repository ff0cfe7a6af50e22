"""Rules of the run loop, each by hand, on a device whose streams the test runs: a change that breaks a rule fails its test."""

import gc
from collections import Counter

import numpy as np
import pytest
import torch

from omni.device import Event, Stream, Uploader
from omni.device.cpu import CpuDevice
from omni.sampling import LogitsEdit
from omni.testing.simulation.late import QueuedDevice
from omni_ar.inputs import TokenCodes, TokenHidden
from omni_ar.model import Codes, DrawCode
from omni_ar.options import ArOptions
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.limits import Limits
from omni_ar.run.pack import pack_step
from omni_ar.run.plan import PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, Row
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.sampler_bench import resolved
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy

TEXT = SmallText()
LONG = [(7 * place * place + 3) % 61 for place in range(14)]
SHORT = [(5 * place + 1) % 61 for place in range(9)]


class CountingCodec(SmallCodec):
    """predicted: frames that have been made."""

    def __init__(self) -> None:
        super().__init__()
        self.predicted = 0

    def predict_codes(self, hidden_RD: torch.Tensor, code0_R: torch.Tensor, draw: DrawCode) -> Codes:
        self.predicted += 1
        return super().predict_codes(hidden_RD, code0_R, draw)


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_a_frame_is_there_when_its_codes_are_and_its_token_before(ahead: int) -> None:
    """The event of a frame is behind the codes: an event at the token point would be too early."""
    model, device = CountingCodec(), QueuedDevice()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=4, max_in_flight=ahead))
    prompt = codec_prompt([1, 2, 3], [4, 5, 6])
    driver.speak("0", prompt, [7, 8], pad=2, max_tokens=8)
    before = 0

    def frames_there() -> int:
        frames = [lent for lent in driver.lent if isinstance(lent.produced.payload.meta, TokenCodes)]
        return sum(lent.produced.ready.done() for lent in frames)

    while "0" not in driver.ends or device.pending:
        driver.tick()
        before += len(driver.tokens("0")) > model.predicted
        with torch.inference_mode():
            assert frames_there() <= model.predicted
            device.run({"ar"}, operations=1)
            device.run({"ar-payload"})
    assert before, "no token came before its frame"
    driver.gather_all()
    assert driver.frames("0") == spoken(model, prompt, [7, 8], 2, 8)[:-1]
    device.assert_no_races()


def test_blocks_are_kept_while_they_hold_payload_of_unread_tokens() -> None:
    """A request is preempted with steps in flight: their tokens' hidden states are read where those steps wrote them."""
    model, device = SmallText(payload=True, emits_tokens=True), QueuedDevice()
    options = ArOptions(max_num_seqs=2, block_size=2, num_blocks=10, max_in_flight=4, prefix_cache=False)
    driver = ArDriver(model, device, options)
    driver.ask("preempted", SHORT, max_tokens=6)
    for _ in range(3):
        driver.tick()
    assert driver.worker.usage()["steps"] == 3
    driver.pause("preempted")
    driver.ask("next", LONG, max_tokens=4, order=(0, 1))
    for _ in range(4):
        driver.tick()
    assert driver.counter("preemptions") == 1
    assert driver.worker.usage()["steps"] == 3, "the next one has to wait for the blocks"
    driver.run()
    driver.resume("preempted")
    driver.gather_all()
    for name, prompt, count in (("preempted", SHORT, 6), ("next", LONG, 4)):
        assert driver.tokens(name) == greedy(model, prompt, count)
        whole_TD = model.whole([*prompt, *driver.tokens(name)])
        indexes = [meta.index for meta, _ in driver.rows[name] if isinstance(meta, TokenHidden)]
        assert indexes == list(range(len(indexes)))
        assert len(indexes) >= count - 1
        for index, (_, rows) in zip(indexes, driver.rows[name], strict=True):
            torch.testing.assert_close(rows[0], whole_TD[len(prompt) + index - 1], rtol=1e-4, atol=1e-5)
    device.assert_no_races()


def test_spilled_rows_are_kept_until_their_last_reader_ends() -> None:
    model, device = SmallText(payload=True), QueuedDevice()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=2, num_blocks=10, prefix_cache=False))
    positions = np.array([0, 3, 8])
    driver.ask("lent", plain_prompt(SHORT, payload_positions=positions), max_tokens=3)
    driver.run()
    driver.ask("next", LONG, max_tokens=5)
    driver.run()
    assert driver.counter("spilled_rows") == len(positions)
    assert driver.held == {"spilled": 1}
    assert driver.gather("lent")
    driver.produced.clear()  # and with it all that holds the memory, but for the stage
    gc.collect()
    for _ in range(3):
        driver.ask("again", LONG, max_tokens=2)
        while "again" not in driver.ends:
            driver.tick()
            with torch.inference_mode():
                device.run({"ar", "ar-payload"})
        del driver.ends["again"]
        driver.tick()
        assert driver.held == {"spilled": 1}, "the gather has not run"
    driver.run()
    (rows,) = driver.hidden("lent")
    torch.testing.assert_close(rows, model.whole(SHORT)[positions], rtol=1e-4, atol=1e-5)
    device.assert_no_races()


def running(row: int, length: int, computed: int, outputs: int, edit: LogitsEdit | None) -> ArRequest:
    return ArRequest(
        str(row),
        resolved(61),
        set(),
        prompt=plain_prompt(range(length)),
        row=Row(row, 0),
        table=BlockTable.of(str(row), range(10 * row + 1, 10 * row + 11), 24),
        edit=edit,
        outputs=list(range(outputs)),
        num_scheduled_outputs=outputs,
        num_computed_tokens=computed,
        prefill_end=length + outputs,
    )


@pytest.mark.parametrize("constrained", [(0, 2, 4), (4,), (2,), (0,)])
def test_host_processor_masks_and_biases_follow_the_sampled_rows(constrained: tuple[int, ...]) -> None:
    """The step has rows that decode, chunks that do not reach their prompt's end, and so sample no token, and others."""
    edits = {r: LogitsEdit(np.array([1 << r]), np.array([r]), np.array([0.5 + r], np.float32)) for r in constrained}
    decodes = tuple(running(row, 4, 5, 2, edits.get(row)) for row in (0, 1))
    chunks = [
        PrefillChunk(running(row, 6, 0, 0, edits.get(row)), 0, 6 if last else 4, first=True, last=last, replay=False)
        for row, last in ((3, False), (2, True), (4, True))
    ]
    plan = StepPlan(1, decodes, tuple(chunks))
    assert [request.row_index for request in plan.sampled] == [0, 1, 2, 4]
    limits = Limits.of("text", ArOptions(max_num_seqs=5, block_size=4), TEXT.shape)
    device = CpuDevice()
    uploader = Uploader(device, device.stream("test"), limits.upload_size, 1)
    upload = uploader.begin()
    packed = pack_step(upload, plan, limits=limits, shape=TEXT.shape, processors=())
    uploader.launch(upload)
    assert packed.edits is not None
    rows_R, edited = uploader.view(packed.rows), packed.edits
    assert rows_R[uploader.view(edited.indices_g)].tolist() == list(constrained)
    assert uploader.view(edited.masks_gM)[:, 0].tolist() == [1 << row for row in constrained]
    assert rows_R[uploader.view(edited.pair_indices_p)].tolist() == list(constrained)
    assert uploader.view(edited.pair_ids_p).tolist() == list(constrained)
    assert uploader.view(edited.pair_bias_p).view(torch.float64).tolist() == [0.5 + row for row in constrained]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_no_more_steps_are_in_flight_than_may_be(most: int) -> None:
    device = QueuedDevice()
    driver = ArDriver(TEXT, device, ArOptions(max_num_seqs=2, block_size=4, max_in_flight=most))
    driver.ask("0", SHORT, max_tokens=20)
    driver.ask("1", LONG, max_tokens=20)
    for _ in range(2 * most + 4):
        driver.tick()
        assert driver.worker.usage()["steps"] <= most
    assert driver.worker.usage()["steps"] == driver.counter("steps") == most, "and as many as may be are"
    with torch.inference_mode():
        while device.pending:
            device.run(operations=1)
            driver.tick()
            assert driver.worker.usage()["steps"] <= most
    driver.run()
    assert driver.all_tokens(2) == [greedy(TEXT, SHORT, 20), greedy(TEXT, LONG, 20)]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_tokens_of_a_row_s_former_owner_are_dropped_and_counted(in_flight: int) -> None:
    """The row belongs to another request, which has begun, when the host reads the tokens of the one before."""
    driver = ArDriver(TEXT, QueuedDevice(), ArOptions(max_num_seqs=1, block_size=4, max_in_flight=4))
    driver.ask("old", SHORT, max_tokens=9)
    for _ in range(in_flight):
        driver.tick()
    assert driver.worker.usage()["steps"] == in_flight
    driver.abort("old")
    driver.ask("new", LONG, max_tokens=6)
    driver.tick()
    assert driver.worker.usage()["steps"] == in_flight + 1, "the new one has begun"
    assert driver.counter("discarded_tokens") == 0
    driver.run()
    assert driver.counter("discarded_tokens") == in_flight
    assert "old" not in driver.produced
    assert driver.tokens("new") == greedy(TEXT, LONG, 6)


def test_a_stop_that_the_host_did_not_foresee_gives_no_stale_token() -> None:
    """The device ends the row by itself: steps that were launched after it give no token, so none is dropped."""
    answer = greedy(TEXT, SHORT, 9)
    stop = next(token for place, token in enumerate(answer) if place >= 3 and token not in answer[:place])
    driver = ArDriver(TEXT, QueuedDevice(), ArOptions(max_num_seqs=1, block_size=4, max_in_flight=4))
    driver.ask("0", SHORT, max_tokens=9, stop_token_ids=(stop,))
    for _ in range(4):
        driver.tick()
    driver.run()
    assert driver.tokens("0") == answer[: answer.index(stop) + 1]
    assert driver.counter("discarded_tokens") == 0


class CallsDevice(CpuDevice):
    """calls: events that were recorded and waits that were enqueued, by stream."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()

    def record(self, stream: Stream) -> Event:
        self.calls["record", stream.name] += 1
        return super().record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        self.calls["wait", stream.name] += 1
        super().wait(stream, event)


def test_hidden_states_have_the_token_s_event_and_cost_the_host_no_call() -> None:
    """They are written before the token, and emitted after it: an event of their own would add nothing."""
    counts = []
    for emits in (False, True):
        device = CallsDevice()
        driver = ArDriver(SmallText(payload=emits, emits_tokens=emits), device, ArOptions(max_num_seqs=2, block_size=4))
        driver.ask("0", SHORT, max_tokens=12)
        driver.run()
        assert driver.tokens("0") == greedy(TEXT, SHORT, 12)
        assert len(driver.lent) == (12 if emits else 0)
        counts.append(device.calls)
    assert counts[0] == counts[1] == {("record", "ar"): counts[0]["record", "ar"]}
