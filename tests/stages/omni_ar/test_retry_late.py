"""Steps and gathers that fail half-way on a device that is late: what was launched before still runs, and reads what it reads.

The requests read embeddings of two kinds: tensors that stay where their producer made them, and page rows that are gathered. The
producer writes over both as soon as they are its own again, and consumers gather the hidden states that the stage emits.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from omni.connector import Ref
from omni.device.cpu import CpuDevice
from omni.errors import StageError
from omni.payload import PageSlice, Payload
from omni.stage import Failed
from omni.testing import Simulation
from omni.testing.faults import FaultyStirredDevice, Owner
from omni_ar.inputs import MultimodalEmbedding, Placeholder
from omni_ar.model import Batch, PromptTokens
from omni_ar.options import ArOptions
from omni_ar.run.plan import StepPlan
from omni_ar.run.runner import Runner
from omni_ar.run.step import StepContext
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.faults import idle, simulate
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import WIDTH, SmallText
from tests.support.tiers import MUTATION, chosen, few

TOKENS = 6
MEDIA = "media"
"""The edge of the embeddings."""

NAMES = [str(index) for index in range(3)]
PROMPTS = [[(11 * index + 5 * place * place) % 60 for place in range(6 + 3 * index)] for index in range(3)]
OPTIONS = ArOptions(
    max_num_seqs=3, block_size=2, max_num_batched_tokens=10, graph_batch_sizes=(1, 3), graph_chunk_sizes=(4, 10)
)

DRAWN = {"logprobs": 2, "prompt_logprobs": 1, "temperature": 1.1, "seed": 5, "repetition_penalty": 1.2}
"""The sampling parameters of the second request."""

pytestmark = [pytest.mark.thorough, pytest.mark.plants_faults]
SEEDS = range(2)
"""Of every other one, steps are captured."""


class ReaderText(SmallText):
    """Adds the rows of embeddings: of some to its input, of others in every forward of a chunk that they stand in."""

    def embed_prompt(self, prompt: PromptTokens) -> Tensor:
        x_TD = super().embed_prompt(prompt)
        for embedding in prompt.embeddings:
            x_TD = x_TD.index_add(0, embedding.tokens_n, embedding.tensors["gathered"])
        return x_TD

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        for embedding in batch.embeddings:
            x_TD = x_TD.index_add(0, embedding.tokens_n + batch.prompt_start, embedding.tensors["still"])
        return super().forward(x_TD, batch)


class Readers(ArDriver):
    """A text stage, and memory that its requests read."""

    def __init__(self, device: CpuDevice | FaultyStirredDevice, captured: bool = False) -> None:
        super().__init__(ReaderText(payload=True), device, OPTIONS, captured=captured)
        self.owner = Owner(device)

    def begin(self, index: int) -> None:
        name, slots = str(index), (Placeholder(name="rows", index=0, positions=np.arange(1, 5)),)
        prompt = plain_prompt(PROMPTS[index], placeholders=slots, payload_positions=np.array([0, 4]))
        self.ask(name, prompt, DRAWN if index == 1 else {}, sources=(MEDIA,), max_tokens=TOKENS)
        pages, still = rows_of(index, 4), rows_of(index + 10, 1)[0]
        tensors: dict[str, Tensor | PageSlice] = {"gathered": PageSlice(pages, np.array([9, 4, 1, 14])), "still": still}
        ref = self.feed(name, Payload(MultimodalEmbedding(name="rows", index=0), tensors))
        self.owner.lend(ref, pages, still)
        self.end(name, source=MEDIA)

    def turn(self) -> bool:
        return self.tick() | self.gather() | self.owner.reuse()

    def scores(self, name: str) -> list[tuple[bool, int, list[list[int]]]]:
        """Whether of the prompt, the first token's index, and the likeliest ids, of each chunk of log-probabilities."""
        return [(chunk.prompt, chunk.first, chunk.ids.tolist()) for chunk in self.logprobs(name)]

    def finished(self) -> bool:
        return len(self.ends) == len(NAMES) and not self.lent and not self.owner.waiting and idle(self.worker)

    def failed(self) -> bool:
        return bool(self.ends) and not self.owner.waiting


def by_token(scores: list[tuple[bool, int, list[list[int]]]]) -> dict[tuple[bool, int], list[int]]:
    """Independent of the division into chunks."""
    return {(prompt, first + place): ids for prompt, first, rows in scores for place, ids in enumerate(rows)}


def rows_of(seed: int, blocks: int) -> Tensor:
    return torch.randn(blocks, 4, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def alone() -> list[Readers]:
    """Each request by itself, on a device that is never late."""
    drivers = []
    for index, name in enumerate(NAMES):
        drivers.append(driver := Readers(CpuDevice()))
        driver.begin(index)
        driver.gather_all()
        assert len(driver.hidden(name)) == 1
    assert len({tuple(driver.tokens(name)) for name, driver in zip(NAMES, drivers, strict=True)}) == len(NAMES)
    assert [bool(driver.scores(name)) for name, driver in zip(NAMES, drivers, strict=True)] == [False, True, False]
    return drivers


PHASES = [
    "copy_upload",
    "start_rows",
    "extend_tables",
    "prepare_decodes",
    "place_chunks",
    "embed_inputs",
    "run_forward",
    "compute_logits",
    "sample_rows",
    "accept_tokens",
    "post_update",
    "score_tokens",
    "score_prompt",
    "copy_scores",
    "gather_rows",
]
RARE = {"score_prompt"}
"""Launched once or twice."""
after = pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])


def traffic(device: FaultyStirredDevice, driver: Readers) -> Simulation:
    simulation = simulate(device, driver.turn, driver.finished)
    for index in range(len(NAMES)):
        simulation.sometime(30, functools.partial(driver.begin, index), f"begin {index}")
    return simulation


def failures(driver: Readers, alone: list[Readers]) -> list[str]:
    """The requests that failed. The others had the results that they have alone."""
    failed = [name for name in NAMES if isinstance(driver.ends[name], Failed)]
    for name, wanted in zip(NAMES, alone, strict=True):
        if name not in failed:
            assert driver.tokens(name) == wanted.tokens(name)
            assert by_token(driver.scores(name)) == by_token(wanted.scores(name))
            torch.testing.assert_close(driver.hidden(name), wanted.hidden(name), rtol=1e-4, atol=1e-5)
    return failed


@after
@pytest.mark.parametrize(
    ("phase", "number"),
    chosen(
        [("run_forward", 2), ("gather_rows", 0)],
        [*((phase, 0) for phase in PHASES), *((phase, 2) for phase in PHASES if phase not in RARE)],
        MUTATION,
    ),
)
def test_a_step_that_fails_half_way(phase: str, number: int, after: bool, alone: list[Readers]):
    failures_of_all = 0
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        driver = Readers(device, captured=seed % 2 == 1)
        simulation = traffic(device, driver)
        device.fail(phase, number, after=after)
        simulation.run()
        failures_of_all += device.failures
        failed = failures(driver, alone)
        errors = [str(driver.error(name)) for name in failed]
        # A gather for several requests is not run again, a step of several is.
        if any("gathering an embedding" in error for error in errors):
            assert (device.failures, driver.counter("retries")) == (1, 0)
        else:
            assert len(failed) + driver.counter("retries") == device.failures
        for name, error in zip(failed, errors, strict=True):
            assert isinstance(driver.error(name), StageError)
            assert f"in phase {phase}: PlantedError: planted" in error
        device.assert_no_races()
    assert failures_of_all > 0


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens"])
@pytest.mark.parametrize("victim", few(1, NAMES))
def test_a_request_whose_every_step_fails_behind_its_launch_fails_alone(
    victim: str, method: str, alone: list[Readers], monkeypatch: pytest.MonkeyPatch
):
    """All that the step launches is on the device when it fails, in each of the steps that the request is part of."""
    real = getattr(Runner, method)

    def spoilt(self: Runner, step: StepPlan | StepContext) -> object:
        done = real(self, step)
        requests = step.sampled if isinstance(step, StepPlan) else [row.request for row in step.requests.rows]
        if any(request.id == victim for request in requests):
            raise ValueError("a fault")
        return done

    monkeypatch.setattr(Runner, method, spoilt)
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        driver = Readers(device, captured=seed % 2 == 1)
        traffic(device, driver).run()
        assert failures(driver, alone) == [victim]
        device.assert_no_races()


@after
@pytest.mark.parametrize("phase", few(1, ["run_forward", "compute_logits", "embed_inputs", "sample_rows"]))
def test_memory_that_a_requests_steps_read_is_not_reused_before_they_end(phase: str, after: bool):
    """It fails alone and is gone at once: with the only step of its prompt, or with one of the two that a longer prompt takes."""
    for seed, index, number in itertools.product(SEEDS, (0, 2), (0, 1)):
        device = FaultyStirredDevice(seed)
        driver = Readers(device)
        simulation = simulate(device, driver.turn, driver.failed)
        driver.begin(index)
        device.fail(phase, number, after=after)
        simulation.run()
        assert f"in phase {phase}" in str(driver.error(str(index)))
        device.assert_no_races()


def test_a_gather_that_fails_half_way_is_over_before_its_source_is_reused():
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        driver = Readers(device)
        slots = (Placeholder(name="rows", index=0, positions=np.arange(2)),)
        sources = {"gathered": rows_of(1, 4), "more": rows_of(2, 4)}
        tensors = {name: PageSlice(pages, np.array([5, 3])) for name, pages in sources.items()}
        driver.open("r")
        driver.feed_host("r", Payload(plain_prompt(PROMPTS[0], placeholders=slots)))
        ref: Ref = driver.feed("r", Payload(MultimodalEmbedding(name="rows", index=0), dict(tensors)))
        driver.owner.lend(ref, *sources.values())
        device.fail("gather_rows", 1, after=False)
        simulate(device, driver.turn, driver.failed).run()
        assert "while gathering an embedding, in phase gather_rows" in str(driver.error("r"))
        device.assert_no_races()


CODEC = SmallCodec()
SPEAKERS = [codec_prompt(range(length), [length] * length) for length in (3, 5, 4)]
CODEC_PHASES = ["run_forward", "sample_rows", "post_update", "predict_codes", "restore_frames", "gather_rows"]


@pytest.fixture(scope="module")
def frames() -> list[list[list[int]]]:
    return [spoken(CODEC, prompt, [index, 7, 9], 2, 14) for index, prompt in enumerate(SPEAKERS)]


def finished(driver: ArDriver) -> bool:
    return len(driver.ends) == len(SPEAKERS) and not driver.lent and idle(driver.worker)


@after
@pytest.mark.parametrize("phase", few(2, CODEC_PHASES[::-1]))
def test_talkers_whose_frames_move(phase: str, after: bool, frames: list[list[list[int]]]):
    """Blocks for less than all of them: rows are spilled and frames restored; consumers are slow."""
    happened = 0
    for seed in SEEDS:
        device = FaultyStirredDevice(seed)
        driver = ArDriver(CODEC, device, ArOptions(max_num_seqs=3, block_size=2, num_blocks=14))

        def turn(driver: ArDriver = driver, device: FaultyStirredDevice = device) -> bool:
            chance = device.schedule.random.random() if device.schedule is not None else 0.0
            return driver.tick() | (chance < 0.1 and driver.gather())

        simulation = simulate(device, turn, functools.partial(finished, driver))
        for index, prompt in enumerate(SPEAKERS):
            driver.speak(str(index), prompt, [index, 7, 9], pad=2, order=(0, index), max_tokens=14)
        device.fail(phase, 0 if phase in ("restore_frames", "gather_rows") else 4, after=after)
        simulation.run()
        happened += device.failures
        failed = {name for name, end in driver.ends.items() if isinstance(end, Failed)}
        assert len(failed) + driver.counter("retries") == device.failures
        place = "moving its payload" if phase == "gather_rows" else "running a step"
        for name in failed:
            assert f"while {place}, in phase {phase}: PlantedError: planted" in str(driver.error(name))
        for index in range(len(SPEAKERS)):
            made = driver.frames(str(index))
            assert made == frames[index][: len(made)]
            assert str(index) in failed or made == frames[index][:-1]
        device.assert_no_races()
    assert happened


def test_the_device_of_these_tests_is_late():
    device = FaultyStirredDevice(1)
    traffic(device, Readers(device)).run()
    assert device.latest > 5
    assert device.failures == 0
