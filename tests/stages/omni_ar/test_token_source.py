"""A stage whose last rank samples gives what it gives alone; a broadcast that comes too late changes nothing."""

import pytest
from msgspec.structs import replace

from omni_ar.options import ArOptions
from omni_ar.run.scores import Scorer
from omni_ar.run.state import Resources
from omni_ar.run.step import StepContext
from tests.stages.omni_ar.remote_tokens import RemoteTokens
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


class RemoteDriver(ArDriver):
    """A stage whose tokens another rank samples. in_turn: broadcasts are shown one at a time, when
    nothing else can go on; otherwise after each tick."""

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


def reused_row(checks: bool) -> tuple[ArDriver, ArDriver]:
    """Tokens of a row's last request come when the row is another's, and has begun; and the same request alone."""
    options = replace(OPTIONS, max_num_seqs=1, max_in_flight=2)
    driver = RemoteDriver(options, in_turn=True, checks=checks)
    driver.ask("old", PROMPTS[0], max_tokens=20)
    while len(driver.tokens("old")) < 4 or not driver.in_flight:
        driver.advance()
    driver.abort("old")
    driver.ask("new", PROMPTS[2], max_tokens=TOKENS)
    while driver.tick():
        pass
    assert driver.in_flight == 2, "the row's new request runs while the old one's tokens are awaited"
    driver.run()
    alone = ArDriver(MODEL, options=options)
    alone.ask("new", PROMPTS[2], max_tokens=TOKENS)
    alone.run()
    return driver, alone


def test_a_broadcast_for_a_row_that_is_another_request_s_changes_nothing():
    driver, alone = reused_row(checks=True)
    assert driver.tokens("new") == alone.tokens("new")
    assert driver.counter("discarded_tokens") == 1


def test_without_the_generation_it_would():
    driver, alone = reused_row(checks=False)
    assert driver.tokens("new") != alone.tokens("new")


@pytest.mark.parametrize("in_turn", [True, False])
def test_one_request_alone_goes_on(in_turn: bool):
    driver = RemoteDriver(replace(OPTIONS, max_in_flight=4), in_turn=in_turn)
    driver.ask("only", PROMPTS[0], max_tokens=TOKENS)
    driver.run()
    alone = ArDriver(MODEL)
    alone.ask("only", PROMPTS[0], max_tokens=TOKENS)
    alone.run()
    assert driver.tokens("only") == alone.tokens("only")
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
