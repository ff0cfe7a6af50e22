"""A stage whose last rank samples gives what it gives alone; a broadcast that comes too late changes nothing.

The other rank is played in this process: it has row state of its own, and broadcasts are read when the test shows them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from omni.device import HostRing, HostSlot
from omni_ar.kernels.sampling.state import SamplingFlags
from omni_ar.kernels.step import accept_tokens, post_update
from omni_ar.kernels.step.state import FIELD_INDEX, RowState
from omni_ar.options import ArOptions
from omni_ar.run.phases import compute_logits, sample_rows, start_rows
from omni_ar.run.scores import Scorer
from omni_ar.run.state import Resources, allocate_rows, allocate_step_buffers
from omni_ar.run.step import StepContext, TokenHandoff
from omni_ar.sampling.pack import SamplingStart
from tests.support.ar_driver import ArDriver
from tests.support.small_text import SmallText, greedy

pytestmark = pytest.mark.thorough

MODEL = SmallText()
PROMPTS = [[5, 9, 2, 44, 17, 3, 3, 8], [1, 60, 33], [7, 7, 12, 50, 22], [30, 31]]
TOKENS = 12
SAMPLING: list[dict[str, object]] = [
    {},
    {"temperature": 0.9, "seed": 11, "top_k": 20},
    {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    {"temperature": 1.2, "seed": 5, "top_p": 0.8, "repetition_penalty": 1.2, "bad_words_ids": ((3, 4), (17,))},
    {"stop_token_ids": tuple(range(24, 40)), "min_tokens": 2},
    {"temperature": 0.7, "seed": 3, "min_tokens": 6, "stop_token_ids": (1, 2, 3, 4, 5, 6, 7, 8)},
]


@dataclass(frozen=True)
class Arrival:
    """The event of a broadcast. shown: whether this rank may see the broadcast of this index."""

    index: int
    shown: Callable[[int], bool]

    def done(self) -> bool:
        return self.shown(self.index)


@dataclass(frozen=True, slots=True)
class Broadcast(TokenHandoff):
    """The slot holds the broadcast itself, whose last column is for the device alone."""

    def read(self, count: int) -> list[list[int]]:
        results: list[list[int]] = self.host.read()[:count, :-1].tolist()
        return results


@dataclass(frozen=True)
class Awaited:
    """A step whose tokens are not the rows' newest yet."""

    step: int
    slot: HostSlot
    arrival: Arrival
    rows_R: Tensor
    advance_R: Tensor
    flags: SamplingFlags


class LastRank:
    """Has the rows' sampling state and nothing else of them."""

    def __init__(self, first: Resources) -> None:
        self._model, self._limits = first.model, first.limits
        self._state = allocate_rows(first.device, first.model, first.limits, first.dtype)
        self._buffers = allocate_step_buffers(first.device, first.model, first.limits, first.dtype)

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: SamplingStart) -> None:
        table_nM = torch.zeros(len(rows_n), self._limits.max_blocks, dtype=torch.int64)
        start_rows(self._state, rows_n, fields_nC, table_nM, sampling)

    def sample(self, context: StepContext, generations_R: Tensor, out_RW: Tensor) -> None:
        """Status, count, ids and generation of each row, `[R, 3 + K]`."""
        count, state, rows_R = len(context.rows), self._state, context.rows_R
        logits_RV, accepted_RW = self._buffers.logits_NV[:count], self._buffers.accepted_NW[:count]
        assert torch.equal(state.columns.generation[rows_R], generations_R), "rows are set up before they are sampled"
        compute_logits(self._model, context.hidden_RD, logits_RV)
        sample_rows(state, logits_RV, rows_R, context.flags, context.edits, (), accepted_RW[:, 2])
        accept_tokens(state, rows_R, accepted_RW)
        post_update(state, rows_R, accepted_RW, context.advance_R, self._limits.step_ids - 1, context.flags)
        out_RW[:, :-1] = accepted_RW
        out_RW[:, -1] = generations_R


class RemoteTokens:
    """The tokens of step k become the rows' newest when step k + 2 begins, or before if the host has read them.

    | buffer | written by | read by | freed by |
    |---|---|---|---|
    | slot of the ring | the broadcast | host, once it has come; `take_broadcast` | step k + 2 |
    | rows and advance kept of a step | `keep_step` | `take_broadcast` | stream order, as many steps later as there are slots |
    """

    lag = 2
    gives_logits = False

    def __init__(self, stage: Resources, *, checks: bool = True) -> None:
        """checks: whether a broadcast for a row that was given to another request is left aside."""
        self.late = 0
        """Broadcasts that became next inputs while those of a later step were awaited."""
        self._shown = 0
        self._last_rank = LastRank(stage)
        self._device, self._stream, self._state = stage.device, stage.stream, stage.rows
        device, limits = stage.device, stage.limits
        self._drafts = limits.step_ids - 1
        self._checks = checks
        size = (limits.rows, 3 + limits.step_ids)
        self._ring = HostRing.allocate(device, size, torch.int64, limits.ring)
        self._kept = device.zeros((limits.ring, 2, limits.rows), torch.int64)
        self._accepted_NW = device.zeros((limits.rows, 2 + limits.step_ids), torch.int64)
        self._awaited: deque[Awaited] = deque()
        self._step = self._sampled = 0

    @property
    def ready(self) -> bool:
        due = all(one.arrival.done() for one in self._awaited if one.step + self.lag <= self._step + 1)
        return due and self._ring.ready

    def show(self, all_of_them: bool) -> None:
        """Makes broadcasts known that are not known yet: all, or the oldest."""
        self._shown = self._sampled if all_of_them else self._shown + 1

    def capture(self, rows_B: Tensor, advance_B: Tensor) -> None:
        pass

    def begin(self, step: int) -> None:
        self._step = step
        while self._awaited and self._awaited[0].arrival.done():
            self._take(self._awaited.popleft())
        assert not self._awaited or self._awaited[0].step + self.lag > step, "a step was launched that is not ready"

    def start(self, rows_n: Tensor, fields_nC: Tensor, sampling: SamplingStart) -> None:
        self._device.launch(self._stream, self._last_rank.start, rows_n, fields_nC, sampling)

    def sample(self, context: StepContext, frames: Callable[[StepContext], None] | None = None) -> TokenHandoff:
        assert frames is None, "a frame that ends a request would come after its token was sent"
        count, launch = len(context.rows), self._device.launch
        kept_2R = self._kept[self._sampled % len(self._kept), :, :count]
        launch(self._stream, keep_step, kept_2R, context.rows_R, context.advance_R)
        slot = self._ring.advance()
        slot.take()
        generations_R = torch.tensor([one.row.generation for one in context.rows])
        launch(self._stream, self._last_rank.sample, context, generations_R, slot.tensor[:count])
        arrival = Arrival(self._sampled, lambda index: index < self._shown)
        slot.guard(arrival)
        self._sampled += 1
        self._awaited.append(Awaited(context.step, slot, arrival, kept_2R[0], kept_2R[1], context.flags))
        return Broadcast(slot, arrival, self._device.record(self._stream))

    def forget(self) -> None:
        if self._awaited and self._awaited[-1].step == self._step:
            self._awaited.pop()

    def _take(self, one: Awaited) -> None:
        count = len(one.rows_R)
        accepted_RW, received_RW = self._accepted_NW[:count], one.slot.tensor[:count]
        launch = self._device.launch
        self.late += bool(self._awaited)
        launch(self._stream, take_broadcast, self._state, one.rows_R, received_RW, accepted_RW, self._checks)
        launch(self._stream, post_update, self._state, one.rows_R, accepted_RW, one.advance_R, self._drafts, one.flags)


def keep_step(kept_2R: Tensor, rows_R: Tensor, advance_R: Tensor) -> None:
    """Keeps the rows of the step's broadcast: the next step's upload takes the place of these."""
    kept_2R[0].copy_(rows_R)
    kept_2R[1].copy_(advance_R)


def take_broadcast(state: RowState, rows_R: Tensor, received_RW: Tensor, accepted_RW: Tensor, checks: bool) -> None:
    """Takes the tokens as the rows' newest, except for rows of another generation: they accept none."""
    before_RC = state.fields.index_select(0, rows_R)
    current_R = before_RC[:, FIELD_INDEX.generation] == received_RW[:, -1]
    accepted_RW.copy_(received_RW[:, :-1], non_blocking=True)
    accept_tokens(state, rows_R, accepted_RW)
    if checks:
        after_RC = state.fields.index_select(0, rows_R)
        state.fields.index_copy_(0, rows_R, torch.where(current_R[:, None], after_RC, before_RC))
        accepted_RW[:, 1].mul_(current_R)


class RemoteDriver(ArDriver):
    """in_turn: broadcasts are shown one at a time, when nothing else can go on; otherwise after each tick."""

    def __init__(self, options: ArOptions, *, in_turn: bool, checks: bool = True) -> None:
        self.in_turn = in_turn
        self.most = 0
        """Steps that were in flight at once."""

        def source(stage: Resources) -> RemoteTokens:
            self.source = RemoteTokens(stage, checks=checks)
            return self.source

        super().__init__(MODEL, options=options, source=source)

    @property
    def in_flight(self) -> int:
        return self.worker.usage()["steps"]

    def tick(self) -> bool:
        moved = super().tick()
        self.most = max(self.most, self.in_flight)
        if not self.in_turn:
            self.source.show(all_of_them=True)
        return moved

    def advance(self) -> bool:
        """Ticks, or shows a broadcast if nothing else can go on. Returns whether there is more to do."""
        if self.tick():
            return True
        if not self.in_flight:
            return False
        self.source.show(all_of_them=False)
        return True

    def run(self) -> None:
        while self.advance():
            pass


OPTIONS = ArOptions(max_num_seqs=4, block_size=2, num_blocks=20, max_model_len=40, max_num_batched_tokens=5)


def mixed(driver: RemoteDriver) -> None:
    """More requests than rows: they join, one is aborted while its tokens are under way, and blocks run out."""
    for index, params in enumerate(SAMPLING):
        driver.ask(str(index), PROMPTS[index % 4], params, max_tokens=TOKENS, rank=(9 - index, 0))
        driver.tick()
    driver.ask("gone", PROMPTS[1], max_tokens=30, rank=(0, 0))
    while len(driver.tokens("gone")) < 3 or not driver.in_flight:
        driver.advance()
    driver.abort("gone")
    driver.ask("after", PROMPTS[2], max_tokens=TOKENS, rank=(0, 1), temperature=0.8, seed=9)
    driver.run()


def outcome(driver: ArDriver) -> dict[str, tuple[list[int], str]]:
    names = [*map(str, range(len(SAMPLING))), "after"]
    return {name: (driver.tokens(name), driver.done(name).reason) for name in names}


@pytest.fixture(scope="module")
def local() -> dict[str, tuple[list[int], str]]:
    driver = ArDriver(MODEL, options=replace(OPTIONS, num_blocks=200))
    for index, params in enumerate(SAMPLING):
        driver.ask(str(index), PROMPTS[index % 4], params, max_tokens=TOKENS)
    driver.ask("after", PROMPTS[2], max_tokens=TOKENS, temperature=0.8, seed=9)
    driver.run()
    return outcome(driver)


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_two_ranks_give_the_tokens_of_one(local: dict[str, tuple[list[int], str]], ahead: int, in_turn: bool):
    driver = RemoteDriver(replace(OPTIONS, max_in_flight=ahead), in_turn=in_turn)
    mixed(driver)
    assert outcome(driver) == local
    assert {reason for _, reason in local.values()} == {"stop", "length"}
    assert driver.counter("preemptions")
    assert not driver.held
    if in_turn and ahead > 1:
        assert driver.most == 2
        assert driver.source.late > 20, "rows go on while a later step's tokens are awaited"
        assert driver.counter("discarded_tokens")


@pytest.mark.parametrize("checks", [True, False], ids=["generations", "no generations"])
def test_a_broadcast_for_a_row_of_another_request_needs_its_generation(checks: bool):
    """Tokens of a row's last request come when the row is another's, and has begun."""
    driver = RemoteDriver(replace(OPTIONS, max_num_seqs=1, max_in_flight=2), in_turn=True, checks=checks)
    driver.ask("old", PROMPTS[0], max_tokens=20)
    while len(driver.tokens("old")) < 4 or not driver.in_flight:
        driver.advance()
    driver.abort("old")
    driver.ask("new", PROMPTS[2], max_tokens=TOKENS)
    while driver.tick():
        pass
    assert driver.in_flight == 2, "the row's new request runs while the old one's tokens are awaited"
    driver.run()
    assert (driver.tokens("new") == greedy(MODEL, PROMPTS[2], TOKENS)) == checks
    assert not checks or driver.counter("discarded_tokens") == 1


@pytest.mark.parametrize("in_turn", [True, False])
def test_one_request_alone_goes_on(in_turn: bool):
    driver = RemoteDriver(replace(OPTIONS, max_in_flight=4), in_turn=in_turn)
    driver.ask("only", PROMPTS[0], max_tokens=TOKENS)
    driver.run()
    assert driver.tokens("only") == greedy(MODEL, PROMPTS[0], TOKENS)
    assert driver.most == 1
    # Chunks of the prompt, then a token a step: none was spent waiting.
    assert driver.counter("steps") == 1 + TOKENS


@pytest.mark.plants_faults
def test_tokens_of_a_step_that_failed_behind_its_handoff_are_dropped(monkeypatch: pytest.MonkeyPatch):
    driver = RemoteDriver(replace(OPTIONS, max_in_flight=4, max_num_batched_tokens=40), in_turn=True)
    failures = 0

    def score(self: Scorer, context: StepContext) -> None:
        nonlocal failures
        if context.step == 4:
            failures += 1
            raise ValueError("no memory")

    monkeypatch.setattr(Scorer, "score", score)
    driver.ask_all(PROMPTS[:3], max_tokens=TOKENS)
    driver.run()
    assert failures == driver.counter("retries") == 1
    assert driver.all_tokens(3) == [greedy(MODEL, prompt, TOKENS) for prompt in PROMPTS[:3]]
    assert not driver.held
