"""Captured steps, of rows that decode and with prompts: padded with null rows and with tokens of no request, and the same results
as uncaptured."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.device import Device, Event, Graph, Phase, Stream
from omni.device.cpu import CpuDevice
from omni.payload import Payload
from omni.sampling import HostRules
from omni.testing.simulation.late import StirredDevice
from omni_ar.attention import TorchPagedAttention
from omni_ar.inputs import MultimodalEmbedding, Placeholder, TokenHidden
from omni_ar.layers.text_model import TextModel
from omni_ar.model import ArShape, Batch, FrameEnd, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.phases import HAND_OVER
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.devices import CountingDevice
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import WIDTH, NothingTwice, SmallText, greedy
from tests.support.tiers import chosen
from tests.support.tiny_text import TextEngine, write_text_model

pytestmark = pytest.mark.thorough

MODEL = SmallText(payload=True)
EMITTING = SmallText(payload=True, emits_tokens=True)
PROMPTS = [[(7 * index + 3 * place * place) % 61 for place in range(2 + 7 * index)] for index in range(5)]
SHORT = [[(7 * index + 3 * place * place) % 61 for place in range(2 + 3 * index)] for index in range(5)]
TOKENS = 14
LITTLE = 11
"""Blocks of 4 tokens: as many as the longest request takes."""
PROMPT_STEPS = {"ar-prompts", "ar-mixed"}


def captured_driver(model: SmallText, device: Device, **changes: object) -> ArDriver:
    options = replace(ArOptions(max_num_seqs=4, block_size=4, graph_chunk_sizes=(4, 9, 32)), **changes)
    return ArDriver(model, device, options, captured=True)


def ask(driver: ArDriver, index: int, name: str | None = None, cache_salt: str = "", **sampling: object) -> None:
    prompt = plain_prompt(PROMPTS[index], payload_positions=np.arange(0, len(PROMPTS[index]), 2))
    driver.ask(name or str(index), prompt, sampling, max_tokens=TOKENS, cache_salt=cache_salt)


def one_after_another(driver: ArDriver) -> None:
    """Each request joins when those before it decode."""
    for index in range(len(PROMPTS)):
        ask(driver, index)
        for _ in range(2):
            driver.tick()
    driver.gather_all()


def check(driver: ArDriver, count: int = len(PROMPTS)) -> None:
    for index in range(count):
        assert driver.tokens(str(index)) == greedy(MODEL, PROMPTS[index], TOKENS)
        (hidden_nD,) = driver.hidden(str(index))
        torch.testing.assert_close(hidden_nD, MODEL.whole(PROMPTS[index])[::2], rtol=1e-4, atol=1e-5)
    assert not driver.held


def replayed(device: CountingDevice) -> set[str]:
    """Graphs of steps with prompts, their rows and tokens."""
    return {name for name in device.replays if name.rpartition("-")[0] in PROMPT_STEPS}


def test_prompts_by_themselves_and_beside_rows_that_decode():
    device = CountingDevice()
    driver = captured_driver(MODEL, device)
    one_after_another(driver)
    check(driver)
    assert {"ar-prompts-4", "ar-mixed-9", "ar-mixed-32"} <= replayed(device)
    assert not device.launches["run_forward"]


@pytest.mark.parametrize(
    ("budget", "blocks", "late"),
    chosen(
        [(5, LITTLE, True), (9, None, False)],
        ((*case, late) for case in ((5, LITTLE), (9, None), (1, None), (9, LITTLE)) for late in (False, True)),
    ),
)
def test_chunks_few_blocks_and_shared_prefixes(late: bool, budget: int, blocks: int | None):
    device = StirredDevice(budget) if late else CountingDevice()
    changes = {"max_num_batched_tokens": budget, "num_blocks": blocks, "graph_chunk_sizes": (1, budget)}
    driver = captured_driver(MODEL, device, **changes)
    one_after_another(driver)
    check(driver)
    ask(driver, 4, "again")
    driver.gather_all()
    assert driver.tokens("again") == driver.tokens("4")
    assert (driver.counter("preemptions") > 0) == (blocks is not None)
    assert driver.done("again").counts["cached_tokens"] > 0
    if isinstance(device, CountingDevice):
        assert replayed(device)
        assert not device.launches["run_forward"]
    else:
        device.assert_no_races()


def logprobs(driver: ArDriver, name: str) -> Tensor:
    """Of all tokens, those of the prompt first."""
    ordered = sorted(driver.logprobs(name), key=lambda chunk: (not chunk.prompt, chunk.first))
    return torch.from_numpy(np.concatenate([chunk.logprobs for chunk in ordered]))


def test_captured_chunks_score_prompts_and_emit_rows_alike():
    drivers = []
    for sizes in ((), (16,)):
        device = CountingDevice()
        driver = captured_driver(EMITTING, device, graph_chunk_sizes=sizes, max_num_batched_tokens=16)
        for index in range(4):
            ask(driver, index, prompt_logprobs=2, logprobs=2)
            driver.tick()
        driver.gather_all()
        assert bool(device.launches["run_forward"]) == (not sizes)
        drivers.append(driver)
    eager, captured = drivers
    for index in range(4):
        name = str(index)
        assert captured.tokens(name) == eager.tokens(name) == greedy(EMITTING, PROMPTS[index], TOKENS)
        whole_TD, last = EMITTING.whole([*PROMPTS[index], *captured.tokens(name)]), len(PROMPTS[index]) - 1
        for driver in drivers:
            assert len(driver.rows[name]) == 1 + TOKENS
            for meta, rows in driver.rows[name]:
                first, end, step = 0, last + 1, 2
                if isinstance(meta, TokenHidden):
                    first, end, step = last + meta.index, last + meta.index + 1, 1
                torch.testing.assert_close(rows, whole_TD[first:end:step], rtol=1e-4, atol=1e-5)
        mine, theirs = logprobs(captured, name), logprobs(eager, name)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert len(mine) == TOKENS + len(PROMPTS[index]) - 1


@pytest.mark.parametrize("late", [False, True])
def test_frames_and_conditioning_and_frames_that_are_restored(late: bool):
    model = SmallCodec()
    device = StirredDevice(3) if late else CountingDevice()
    prompts = [codec_prompt([1, 2, 3, 5, 8][: 2 + index], [9, 8, 7, 6, 5][: 2 + index]) for index in range(4)]
    texts = [[index + step for step in range(4)] for index in range(4)]
    few = ArOptions(max_num_seqs=3, block_size=3, num_blocks=7, graph_chunk_sizes=(7, 40), prefix_cache=False)
    driver = ArDriver(model, device, few, captured=True)
    for index, prompt in enumerate(prompts):
        driver.speak(str(index), prompt, texts[index], pad=2, max_tokens=10)
        driver.tick()
    driver.gather_all()
    assert driver.counter("preemptions") > 0
    for index, prompt in enumerate(prompts):
        assert driver.frames(str(index)) == spoken(model, prompt, texts[index], 2, 10)[:-1]
    if isinstance(device, CountingDevice):
        assert device.launches["restore_frames"]
        assert not device.launches["run_forward"]
    else:
        device.assert_no_races()


def test_more_tokens_and_more_chunks_run_uncaptured_and_log_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("omni_ar.run.limits.MAX_CAPTURED_CHUNKS", 2)
    device = CountingDevice()
    driver = captured_driver(MODEL, device)
    with caplog.at_level(logging.INFO):
        for indexes in ((0, 1, 2), (3, 4), (0, 1, 2), (3, 4)):
            for index in indexes:
                ask(driver, index, f"{len(driver.ends)}-{index}", cache_salt=str(len(driver.ends)))
            driver.gather_all()
    for name in driver.ends:
        assert driver.tokens(name) == greedy(MODEL, PROMPTS[int(name[-1])], TOKENS)
    assert device.launches["run_forward"] == 4
    assert not replayed(device)
    assert [record.getMessage() for record in caplog.records] == [
        "ar: steps with more than 2 chunks run uncaptured",
        "ar: batches of more than 32 chunk tokens run uncaptured: raise ar.graph_chunk_sizes",
    ]


class Illustrated(SmallText):
    """Adds what embeddings hold: some to its input, and `deep` ones in its forward."""

    def __init__(self, read: tuple[str, ...] | None) -> None:
        super().__init__()
        self._read = read

    @property
    def shape(self) -> ArShape:
        return dataclasses.replace(super().shape, forward_embeddings=self._read)

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD = super().embed_prompt(prompt).clone()
        for embedding in prompt.embeddings:
            if embedding.name == "plain":
                x_TD.index_add_(0, embedding.tokens_n, embedding.tensors["rows"])
        return x_TD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        for embedding in batch.embeddings:
            if embedding.name == "deep":
                x_TD = x_TD.index_add(0, embedding.tokens_n + batch.prompt_start, embedding.tensors["rows"])
        return super().forward(x_TD, batch)


@pytest.mark.parametrize(
    ("read", "name"), [(None, "plain"), (None, "deep"), (("deep",), "plain"), (("deep",), "deep"), ((), "plain")]
)
def test_a_forward_that_reads_tensors_itself_is_not_captured(
    read: tuple[str, ...] | None, name: str, caplog: pytest.LogCaptureFixture
):
    said, captured = [], []
    for sizes in ((), (32,)):
        device = CountingDevice()
        driver = captured_driver(Illustrated(read), device, graph_chunk_sizes=sizes)
        slot = Placeholder(name=name, index=0, positions=np.array([2, 3, 5]))
        driver.open("0")
        driver.feed_host("0", Payload(plain_prompt(PROMPTS[3], placeholders=(slot,))))
        rows = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
        driver.feed("0", Payload(MultimodalEmbedding(name=name, index=0), {"rows": rows}))
        driver.end("0")
        for _ in range(30):
            driver.tick()
        said.append(driver.tokens("0"))
        captured.append(not device.launches["run_forward"])
    assert said[0] == said[1] != greedy(SmallText(), PROMPTS[3], len(said[0]))
    assert captured == [False, read is not None and name not in read]
    why = "that ArShape.forward_embeddings leaves open" if read is None else "that the model's forward reads"
    logged = f"ar: steps with multimodal embeddings ({name}) {why} run uncaptured"
    assert (logged in caplog.messages) == (not captured[1])


@pytest.mark.parametrize("captures", [True, False])
def test_an_attention_backend_may_have_to_know_chunks_on_the_host(
    captures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(TorchPagedAttention, "captures_prefills", captures)
    write_text_model(tmp_path / "model", "untied")
    device = CountingDevice()
    with caplog.at_level(logging.WARNING, "omni_ar"):
        engine = TextEngine(tmp_path / "model", {"text.attention_backend": "torch"}, device, graphs=True)
    device.launches.clear()
    engine.submit("0", [1, 2, 3], max_tokens=3)
    engine.run()
    assert device.launches["run_forward"] == (not captures)
    assert device.replays["text-prompts-16"] == captures
    said = ["text: steps with prompts run uncaptured, as always with attention_backend 'torch'"]
    assert [record.getMessage() for record in caplog.records] == ([] if captures else said)


def test_attention_of_a_models_own_may_have_to_know_chunks_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    published = vars(TextModel)["shape"].fget
    shape = property(lambda model: dataclasses.replace(published(model), captures_prefills=False))
    monkeypatch.setattr(TextModel, "shape", shape)
    write_text_model(tmp_path / "model", "untied")
    device = CountingDevice()
    with caplog.at_level(logging.WARNING, "omni_ar"):
        engine = TextEngine(tmp_path / "model", {}, device, graphs=True)
    device.launches.clear()
    engine.submit("0", [1, 2, 3], max_tokens=3)
    engine.run()
    assert device.launches["run_forward"] == 1
    assert device.replays["text-decode-1"] > 0
    said = ["text: steps with prompts run uncaptured, as always with the attention of this model"]
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize("sizes", [(0,), (33,), (4, -1)])
def test_sizes_that_no_step_has_are_refused(sizes: tuple[int, ...]):
    with pytest.raises(ValueError, match="graph_chunk_sizes must be at least 1, at most max_num_batched_tokens, 32"):
        ArOptions(max_num_batched_tokens=32, graph_chunk_sizes=sizes)


@pytest.mark.parametrize("model", [EMITTING, SmallCodec()])
@pytest.mark.parametrize(("rows", "budget"), [(1, 1), (2, 30), (9, 5)])
def test_padding_fits_into_the_upload(model: SmallText | SmallCodec, rows: int, budget: int):
    limits = Limits.of("ar", ArOptions(max_num_seqs=rows, max_num_batched_tokens=budget), model.shape)
    shape = model.shape
    padding = (shape.position_axes + 2) * budget + rows + limits.captured_chunks * 4 + len(shape.step_columns) * rows
    columns = max(len(shape.prompt_columns), 1 + len(shape.step_columns)) * budget
    assert padding + columns + 4 * rows < limits.upload_size


# Steps without prompts.


def run(
    sizes: tuple[int, ...] | None, requests: int, sampling: Mapping[str, object] = {}
) -> tuple[ArDriver, CountingDevice]:
    device = CountingDevice()
    options = ArOptions(max_num_seqs=5, block_size=4, graph_batch_sizes=sizes, graph_chunk_sizes=())
    driver = ArDriver(EMITTING, device, options, captured=True)
    device.launches.clear()
    prompts = [plain_prompt(prompt, payload_positions=np.array([0])) for prompt in SHORT[:requests]]
    driver.ask_all(prompts, sampling, max_tokens=9)
    driver.run()
    return driver, device


@pytest.mark.parametrize(("sizes", "padded"), [((3,), 3), ((4,), 4), ((1, 5), 5)])
def test_a_batch_is_padded_to_the_next_size_and_gives_the_same(sizes: tuple[int, ...], padded: int):
    driver, device = run(sizes, 3)
    assert driver.all_tokens(3) == [greedy(EMITTING, prompt, 9) for prompt in SHORT[:3]]
    # One step has the prompts; the eight that follow only decode.
    assert device.replays == {f"ar-decode-{padded}": 8, f"ar-sample-{padded}": 9}
    assert device.launches["run_forward"] == 1
    assert not device.launches["sample_rows"]


def test_a_batch_of_more_rows_runs_uncaptured_and_logs_it_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        driver, device = run((2,), 4)
    assert driver.all_tokens(4) == [greedy(EMITTING, prompt, 9) for prompt in SHORT[:4]]
    assert not device.replays
    assert [record.getMessage() for record in caplog.records] == [
        "ar: batches of more than 2 rows run uncaptured: raise ar.graph_batch_sizes"
    ]


def test_every_way_of_sampling_is_in_the_captured_step():
    asked = {
        "temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 3.0, "seed": 4, "repetition_penalty": 1.3,
        "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {3: 2.0}, "min_tokens": 3,
        "stop_token_ids": (5, 6), "suppress_token_ids": (1,), "bad_words_ids": ((2,), (7, 9)),
    }  # fmt: skip
    (captured, device), (eager, _) = run((4,), 4, asked), run((), 4, asked)
    assert device.replays["ar-sample-4"]
    assert not device.launches["sample_rows"]
    assert captured.all_tokens(4) == eager.all_tokens(4)
    assert captured.tokens("0") != run((), 1)[0].tokens("0")


def test_host_processors_sample_uncaptured_behind_a_captured_forward(caplog: pytest.LogCaptureFixture):
    device = CountingDevice()
    driver = ArDriver(EMITTING, device, ArOptions(max_num_seqs=2, block_size=4), captured=True)
    device.launches.clear()
    driver.ask("0", SHORT[1], rules=HostRules(host_processors=(NothingTwice(61, most=6),)), max_tokens=6)
    with caplog.at_level(logging.WARNING):
        while not driver.ends:
            driver.tick()
    said = ["ar: sampling steps with logits processors or structured outputs run uncaptured"]
    assert [record.getMessage() for record in caplog.records] == said
    assert len(driver.tokens("0")) == 6
    assert device.replays["ar-decode-1"] == 5
    assert device.launches["sample_rows"] >= 5


class OrderDevice(CpuDevice):
    """order: of replayed graphs, and of phases that are launched outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self._replaying = False

    def replay(self, stream: Stream, graph: Graph) -> None:
        self.order.append(graph.name.removeprefix("ar-").rstrip("-0123456789"))
        self._replaying = True
        super().replay(stream, graph)
        self._replaying = False

    def moment(self, stream: Stream, name: str) -> None:
        self.order.append(name)
        super().moment(stream, name)

    def record(self, stream: Stream) -> Event:
        self.order.append("record")
        return super().record(stream)

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        if not self._replaying:
            self.order.append(phase.__name__)
        super().launch(stream, phase, *buffers)


def order_of(model: SmallCodec, captured: bool) -> list[str]:
    """Of a request of four tokens."""
    device = OrderDevice()
    driver = ArDriver(model, device, ArOptions(max_num_seqs=2, block_size=4), captured=captured)
    driver.speak("0", codec_prompt([1, 2], [3, 4]), [5, 6], pad=2, max_tokens=4)
    while "0" not in driver.ends:
        driver.tick()
    return device.order


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_are_handed_over_before_codes_are_predicted(captured: bool):
    """On a GPU, test_gpu_graphs.py checks that their event is complete meanwhile."""
    order = order_of(SmallCodec(), captured)
    first, *rest = ["sample"] if captured else ["sample_rows", "accept_tokens", "post_update"]
    codes = "codes" if captured else "predict_codes"
    handed = [*rest, HAND_OVER, "record"]
    behind = [order[at + 1 : at + 2 + len(handed)] for at, name in enumerate(order) if name == first]
    assert behind == [[*handed, codes]] * 4


class EndingCodec(SmallCodec):
    frame_end = FrameEnd(36, 3)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_tokens_wait_for_codes_that_may_end_the_request(captured: bool):
    order = order_of(EndingCodec(), captured)
    codes = "codes" if captured else "predict_codes"
    behind = [order[at + 1 : at + 3] for at, name in enumerate(order) if name == codes]
    assert behind == [[HAND_OVER, "record"]] * 4
