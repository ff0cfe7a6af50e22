"""A step that fails is run again for each of its requests alone: only what is at fault fails, the others' results are unchanged."""

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from omni.device import Phase, Stream
from omni.device.cpu import CpuDevice
from omni.stage import Failed
from omni_ar.model import Batch
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.small_codec import SmallCodec, codec_prompt, spoken
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import MUTATION, chosen

PROMPTS = [[(11 * index + 5 * place * place) % 60 for place in range(2 + 3 * index)] for index in range(4)]
TOKENS = 10
MODEL = SmallText()
FAILED = "stage 'text' failed while running a step, in phase {phase}: ValueError: {error}"
ANSWERS = [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS]


class FaultyDevice(CpuDevice):
    """Raises at the `at`-th launch of a phase from when it is armed, once, before or after the phase has run."""

    def __init__(self, phase: str, at: int, late: bool) -> None:
        super().__init__()
        self.faults = 0
        self.launches = 0
        self.armed = False
        self._phase_name, self._at, self._late = phase, at, late

    def launch(self, stream: Stream, phase: Phase, *buffers: object) -> None:
        due = self.armed and phase.__name__ == self._phase_name
        self.launches += due
        if not due or self.launches != self._at:
            super().launch(stream, phase, *buffers)
            return
        self.faults += 1
        super().launch(stream, faulty(phase, self._late), *buffers)


def faulty(phase: Phase, late: bool) -> Callable[..., None]:
    def run(*buffers: object) -> None:
        if late:
            phase(*buffers)
        raise ValueError("a fault")

    run.__name__ = phase.__name__
    return run


@pytest.mark.plants_faults
def test_a_prompt_that_no_model_can_embed_fails_alone():
    model = SmallText()
    model.bad_id = 60
    assert all(60 not in answer for answer in ANSWERS)
    driver = ArDriver(model, options=ArOptions(max_num_seqs=5, block_size=2))
    driver.ask_all(PROMPTS[:2], max_tokens=TOKENS)
    driver.tick()
    driver.ask("bad", [3, 60, 9], max_tokens=TOKENS)
    for index, prompt in enumerate(PROMPTS[2:], 2):
        driver.ask(str(index), prompt, max_tokens=TOKENS)
    driver.run()
    assert str(driver.error("bad")) == FAILED.format(phase="embed_inputs", error="bad id")
    assert driver.tokens("bad") == []
    assert driver.all_tokens(4) == ANSWERS
    assert driver.counter("retries") == 1


@pytest.mark.plants_faults
def test_a_token_that_no_model_can_embed_fails_who_generated_it():
    bad = next(token for token in ANSWERS[2][3:-1] if all(token not in (*PROMPTS[i], *ANSWERS[i]) for i in (0, 1, 3)))
    first = ANSWERS[2].index(bad)
    assert bad not in PROMPTS[2]
    model = SmallText()
    model.bad_id = bad
    driver = ArDriver(model)
    driver.ask_all(PROMPTS, max_tokens=TOKENS)
    driver.run()
    assert "in phase embed_inputs: ValueError: bad id" in str(driver.error("2"))
    assert driver.all_tokens(4) == [*ANSWERS[:2], ANSWERS[2][: first + 1], ANSWERS[3]]
    assert driver.counter("retries") == 1


class OverwhelmedText(SmallText):
    """Cannot decode four rows at once."""

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        if batch.attention.num_decode == 4:
            raise ValueError("too many")
        return super().forward(x_TD, batch)


@pytest.mark.plants_faults
def test_a_batch_that_the_model_cannot_stand_goes_on_one_by_one():
    driver = ArDriver(OverwhelmedText())
    driver.ask_all(PROMPTS, max_tokens=TOKENS)
    driver.run()
    assert driver.all_tokens(4) == ANSWERS
    assert driver.counter("retries") > 1


TEXT_PHASES = [
    "copy_upload",
    "start_rows",
    "extend_tables",
    "prepare_decodes",
    "place_chunks",
    "run_forward",
    "compute_logits",
    "sample_rows",
    "accept_tokens",
    "post_update",
]


@pytest.mark.plants_faults
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("phase", chosen(["run_forward", "post_update"], TEXT_PHASES, MUTATION))
def test_a_fault_in_a_batch_of_several_fails_none(phase: str, at: int, late: bool):
    device = FaultyDevice(phase, at, late)
    model = SmallText(payload=True)
    driver = ArDriver(model, device, ArOptions(max_num_seqs=6, block_size=2, max_num_batched_tokens=12))
    asked = {"max_tokens": TOKENS, "temperature": 1.1, "seed": 5, "repetition_penalty": 1.2}
    alone = ArDriver(MODEL)
    alone.ask("random", PROMPTS[1], asked)
    alone.run()
    for index, prompt in enumerate(PROMPTS[:2]):
        driver.ask(str(index), plain_prompt(prompt, payload_positions=np.array([0, 1])), max_tokens=TOKENS)
    driver.ask("random", PROMPTS[1], asked)
    for _ in range(3):
        driver.tick()
    device.armed = True
    for index, prompt in enumerate(PROMPTS[2:], 2):
        driver.ask(str(index), plain_prompt(prompt, payload_positions=np.array([1, 4])), max_tokens=TOKENS)
        driver.tick()
    driver.gather_all()
    assert device.faults == 1
    assert driver.counter("retries") == 1
    assert driver.all_tokens(4) == ANSWERS
    assert driver.tokens("random") == alone.tokens("random")
    for index, prompt in enumerate(PROMPTS):
        (hidden,) = driver.hidden(str(index))
        wanted = model.whole(prompt)[[0, 1] if index < 2 else [1, 4]]
        np.testing.assert_allclose(hidden, wanted, rtol=1e-4, atol=1e-5)


CODEC = SmallCodec()
SPEAKERS = [codec_prompt(range(length), [length] * length) for length in (3, 5, 4)]
FRAMES = [spoken(CODEC, prompt, [index, 7, 9], 2, 14) for index, prompt in enumerate(SPEAKERS)]


def few_blocks_of_frames(device: FaultyDevice) -> ArDriver:
    """Talkers with blocks for less than all of them, so that frames are restored and payload is moved."""
    driver = ArDriver(CODEC, device, ArOptions(max_num_seqs=3, block_size=2, num_blocks=14))
    device.armed = True
    for index, prompt in enumerate(SPEAKERS):
        driver.speak(str(index), prompt, [index, 7, 9], pad=2, rank=(0, index), max_tokens=14)
    return driver


@pytest.mark.plants_faults
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("phase", ["run_forward", "sample_rows", "post_update", "predict_codes", "restore_frames"])
def test_a_fault_in_a_batch_of_talkers_changes_no_frame(phase: str, late: bool):
    device = FaultyDevice(phase, 1 if phase == "restore_frames" else 2, late)
    driver = few_blocks_of_frames(device)
    driver.gather_all()
    assert device.faults == 1
    for index, frames in enumerate(FRAMES):
        assert driver.tokens(str(index)) == [frame[0] for frame in frames]
        assert driver.frames(str(index)) == frames[:-1]
    assert driver.counter("preemptions") > 0


@pytest.mark.parametrize("phase", TEXT_PHASES)
def test_a_fault_in_a_batch_of_one_is_reported_with_stage_and_phase(phase: str):
    device = FaultyDevice(phase, 1, late=True)
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=1, block_size=2))
    device.armed = True
    driver.ask("r", PROMPTS[0], max_tokens=TOKENS)
    driver.ask("next", PROMPTS[1], max_tokens=TOKENS)
    driver.run()
    assert str(driver.error("r")) == FAILED.format(phase=phase, error="a fault")
    assert driver.tokens("next") == ANSWERS[1]
    assert driver.counter("retries") == 0


@pytest.mark.parametrize(
    ("gathers", "at"), [(True, 1), (True, 2), (True, 3), (False, 1), (False, 2), (False, 4), (False, 6)]
)
def test_what_cannot_be_moved_fails_whose_it_is(gathers: bool, at: int):
    device = FaultyDevice("gather_rows", at, late=False)
    driver = few_blocks_of_frames(device)
    while driver.tick():
        if gathers:
            driver.gather()
    driver.gather_all()
    assert device.faults == 1
    failed = [name for name, end in driver.ends.items() if isinstance(end, Failed)]
    assert [str(driver.error(name)) for name in failed] == [
        "stage 'text' failed while moving its payload, in phase gather_rows: ValueError: a fault"
    ]
    for index, frames in enumerate(FRAMES):
        made = driver.frames(str(index))
        assert made == frames[: len(made) if str(index) in failed else -1]
