"""The worker's part of sampling: log-probabilities, host processors, stop strings, emitted hidden states."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from omni.device.cpu import CpuDevice
from omni.errors import InputError
from omni.sampling import HostLogitsProcessor, HostRules, LogitsEdit, StopVerdict
from omni.stage import Done
from omni.testing.faults import FaultyDevice, Place
from omni.testing.simulation.late import QueuedDevice, StirredDevice
from omni_ar.inputs import TokenHidden
from omni_ar.options import ArOptions
from tests.support.ar_driver import ArDriver, plain_prompt
from tests.support.small_text import SmallText, greedy
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough

MODEL = SmallText()
EMITTING = SmallText(payload=True, emits_tokens=True)
PROMPTS = [[5, 9, 2, 44, 17, 3, 3, 8], [1, 60, 33], [7, 7, 12, 50, 22]]
TOKENS = 12


def ahead_driver(kind: str = "cpu", model: SmallText = MODEL, **changes: object) -> ArDriver:
    options = replace(ArOptions(max_num_seqs=4, block_size=4, max_in_flight=4), **changes)
    return ArDriver(model, CpuDevice() if kind == "cpu" else StirredDevice(int(kind)), options)


def steered(*processors: HostLogitsProcessor) -> HostRules:
    return HostRules(host_processors=processors)


def expected_logprobs(tokens: Sequence[int]) -> torch.Tensor:
    """`[T, V]`, of the token after each."""
    with torch.inference_mode():
        return (MODEL.whole(tokens).double() @ MODEL.head.T.double()).log_softmax(-1)


KINDS = few(2, ["cpu", "1", "2", "3"], SLOW)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_of_tokens_and_prompt(kind: str):
    driver = ahead_driver(kind, max_num_batched_tokens=6)
    asked: list[dict[str, int]] = [{"logprobs": 3}, {"prompt_logprobs": 2, "logprobs": 0}, {}, {"prompt_logprobs": 0}]
    for index, params in enumerate(asked):
        driver.ask(str(index), PROMPTS[index % 3], params, max_tokens=TOKENS)
    driver.run()
    for index, params in enumerate(asked):
        name, prompt = str(index), PROMPTS[index % 3]
        tokens = driver.tokens(name)
        assert tokens == greedy(MODEL, prompt, TOKENS)
        logprobs_TV = expected_logprobs([*prompt, *tokens])
        for of_prompt, key in ((False, "logprobs"), (True, "prompt_logprobs")):
            given = [chunk for chunk in driver.logprobs(name) if chunk.prompt == of_prompt]
            if key not in params:
                assert not given
                continue
            places = [chunk.first + row for chunk in given for row in range(len(chunk.ids))]
            assert places == (list(range(1, len(prompt))) if of_prompt else list(range(len(tokens))))
            for chunk in given:
                for row, ids in enumerate(chunk.ids.tolist()):
                    place = chunk.first + row + (0 if of_prompt else len(prompt))
                    known_V = logprobs_TV[place - 1]
                    assert ids[0] == [*prompt, *tokens][place]
                    assert ids[1:] == known_V.topk(params[key]).indices.tolist()
                    torch.testing.assert_close(
                        torch.from_numpy(chunk.logprobs[row]).double(), known_V[ids], atol=1e-5, rtol=0
                    )
                    assert chunk.ranks[row] == 1 + int((known_V > known_V[ids[0]]).sum())


def test_a_prompt_that_is_scored_is_run_whole_and_others_use_the_cache():
    driver = ahead_driver()
    for name, scored in (("first", None), ("scored", 1), ("plain", None)):
        driver.ask(name, PROMPTS[0], max_tokens=3, prompt_logprobs=scored)
        driver.run()
    counts = {name: driver.done(name).counts["cached_tokens"] for name in ("first", "scored", "plain")}
    assert counts == {"first": 0, "scored": 0, "plain": 4}
    assert sum(len(chunk.ids) for chunk in driver.logprobs("scored")) == len(PROMPTS[0]) - 1


@pytest.mark.parametrize("kind", few(1, ["cpu", "1", "2", "3"], SLOW))
def test_scored_prompts_that_are_preempted_are_scored_once(kind: str):
    driver = ahead_driver(kind, max_num_batched_tokens=3, num_blocks=24, max_model_len=24, max_num_seqs=6, block_size=1)
    for index in range(6):
        scored = {"prompt_logprobs": 1, "logprobs": 1}
        driver.ask(str(index), PROMPTS[index % 3], scored, max_tokens=TOKENS, order=(6 - index, index))
        driver.tick()
    driver.run()
    assert driver.counter("preemptions")
    for index in range(6):
        prompt = PROMPTS[index % 3]
        assert driver.tokens(str(index)) == greedy(MODEL, prompt, TOKENS)
        places = [c.first + row for c in driver.logprobs(str(index)) if c.prompt for row in range(len(c.ids))]
        assert places == list(range(1, len(prompt)))


class Alternating:
    """Allows even and odd ids in turns, and ends after so many tokens."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens
        self._parity = 0
        self.heard: list[int] = []

    def edit(self) -> LogitsEdit:
        bits = sum(1 << i for i in range(61) if i % 2 == self._parity)
        return LogitsEdit(np.array([bits], np.uint64).astype(np.int64))

    def push(self, token: int) -> bool:
        self.heard.append(token)
        self._parity, self._left = 1 - self._parity, self._left - 1
        return self._left == 0


class Broken:
    def __init__(self, fault: BaseException) -> None:
        self._fault = fault

    def edit(self) -> LogitsEdit:
        return LogitsEdit()

    def push(self, token: int) -> bool:
        raise self._fault


def alternating(prompt: Sequence[int], count: int) -> list[int]:
    """Tokens under `Alternating`, everything recomputed for each."""
    made: list[int] = []
    while len(made) < count:
        scores = (MODEL.head @ MODEL.whole([*prompt, *made])[-1]).tolist()
        made.append(max((i for i in range(61) if i % 2 == len(made) % 2), key=scores.__getitem__))
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_constrained_requests_wait_for_their_tokens_and_others_do_not(kind: str):
    driver = ahead_driver(kind, num_blocks=10)
    processor = Alternating(7)
    driver.ask("constrained", PROMPTS[0], rules=steered(processor), max_tokens=TOKENS)
    driver.ask("plain", PROMPTS[1], max_tokens=TOKENS)
    driver.ask("both", PROMPTS[2], rules=steered(Alternating(50), Alternating(4)), max_tokens=TOKENS)
    settle(driver)
    assert driver.tokens("constrained") == alternating(PROMPTS[0], 7) == processor.heard
    assert driver.tokens("both") == alternating(PROMPTS[2], 4)
    assert driver.tokens("plain") == greedy(MODEL, PROMPTS[1], TOKENS)
    reasons = {name: driver.done(name).reason for name in driver.ends}
    assert reasons == {"constrained": "stop", "both": "stop", "plain": "length"}


def test_a_processor_that_ends_a_request_releases_withheld_tokens():
    driver = ahead_driver()
    made = alternating(PROMPTS[0], 5)
    rules = HostRules(stops=StopAtIds([*made[-2:], 60]), host_processors=(Alternating(5),))
    driver.ask("constrained", PROMPTS[0], rules=rules, max_tokens=TOKENS)
    settle(driver)
    assert driver.tokens("constrained") == made
    assert driver.done("constrained").withheld == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("little", [False, True])
def test_the_last_token_that_a_processor_allows_has_its_hidden_state_too(kind: str, little: bool):
    """One more step gives it, also of a request that is preempted, and no token."""
    counts = (9, 1, 6)
    options = {"num_blocks": max(map(len, PROMPTS)) + 10, "block_size": 1} if little else {}
    driver = ahead_driver(kind, model=EMITTING, **options)
    for index, (prompt, count) in enumerate(zip(PROMPTS, counts, strict=True)):
        driver.ask(str(index), prompt, rules=steered(Alternating(count)), max_tokens=count + 1, logprobs=0)
        driver.tick()
    settle(driver)
    driver.gather_all()
    assert bool(driver.counter("preemptions")) == little
    for index, (prompt, count) in enumerate(zip(PROMPTS, counts, strict=True)):
        name = str(index)
        tokens = driver.tokens(name)
        assert tokens == alternating(prompt, count)
        assert (driver.done(name).reason, driver.done(name).counts["tokens"]) == ("stop", count)
        assert sum(len(chunk.ids) for chunk in driver.logprobs(name)) == count
        wanted = MODEL.whole([*prompt, *tokens])[len(prompt) - 1 :]
        torch.testing.assert_close(torch.cat([row for _, row in driver.rows[name]]), wanted)


@pytest.mark.parametrize(
    "fault", [ValueError("a processor's fault"), SystemExit("a processor's fault")], ids=["error", "panic"]
)
def test_a_processor_that_fails_fails_its_request_alone(fault: BaseException):
    driver = ahead_driver()
    driver.ask("constrained", PROMPTS[0], rules=steered(Broken(fault)), max_tokens=TOKENS)
    driver.ask("plain", PROMPTS[1], max_tokens=TOKENS)
    settle(driver)
    assert "running its host processors" in str(driver.error("constrained"))
    assert f"{type(fault).__name__}: a processor's fault" in str(driver.error("constrained"))
    assert driver.tokens("plain") == greedy(MODEL, PROMPTS[1], TOKENS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_without_a_possible_token_fails_alone(kind: str):
    driver = ahead_driver(kind)
    driver.ask("plain", PROMPTS[1], max_tokens=TOKENS)
    driver.ask("mute", PROMPTS[0], rules=steered(Nothing()), max_tokens=TOKENS)
    settle(driver)
    error = driver.error("mute")
    assert isinstance(error, InputError)
    assert "leaves no token" in str(error)
    assert driver.tokens("plain") == greedy(MODEL, PROMPTS[1], TOKENS)


class Nothing:
    def edit(self) -> LogitsEdit:
        return LogitsEdit(np.zeros(1, np.int64))

    def push(self, token: int) -> bool:
        return False


class StopAtIds:
    """A stop string of these ids, as a matcher of texts would treat it."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._said: list[int] = []

    def push(self, token: int) -> StopVerdict:
        self._said.append(token)
        fits = [n for n in range(len(self._ids) + 1) if n == 0 or self._said[-n:] == self._ids[:n]]
        return StopVerdict(max(fits), max(fits) == len(self._ids))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_stop_strings_end_a_request_before_them(kind: str, length: int):
    driver = ahead_driver(kind, model=EMITTING)
    said = greedy(MODEL, PROMPTS[0], TOKENS)
    stop = said[5 : 5 + length]
    first = next(n for n in range(TOKENS) if said[n : n + length] == stop)
    for name, ids in (("stopped", stop), ("whole", [said[-1], 60, 60])):
        driver.ask(name, PROMPTS[0], rules=HostRules(stops=StopAtIds(ids)), max_tokens=TOKENS)
    driver.gather_all()
    assert driver.tokens("stopped") == said[:first]
    assert driver.done("stopped").withheld == tuple(stop)
    assert driver.done("stopped").reason == "stop"
    assert driver.done("stopped").counts["tokens"] == first + length
    assert driver.tokens("whole") == said, "what turned out to be no stop string is given out"
    # One is of the token before, or of the prompt: that of the last emitted token follows with the first withheld one.
    for name, count in (("stopped", first + 1), ("whole", TOKENS)):
        metas = [meta for meta, _ in driver.rows.get(name, [])]
        assert metas == [TokenHidden(index=i) for i in range(count)], "hidden states go with the tokens they are of"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("little", [False, True])
def test_every_token_s_hidden_state_is_emitted(kind: str, little: bool):
    options = {"num_blocks": 8, "max_num_batched_tokens": 5} if little else {}
    driver = ahead_driver(kind, model=EMITTING, max_model_len=24, **options)
    for index, prompt in enumerate(PROMPTS):
        given = plain_prompt(prompt, payload_positions=np.array([0, len(prompt) - 1]))
        driver.ask(str(index), given, max_tokens=TOKENS, order=(3 - index, index))
        driver.tick()
    for _ in range(2000):
        with torch.inference_mode():
            if not driver.tick() | driver.gather() and len(driver.ends) == 3 and not driver.lent:
                break
    driver.run()
    assert bool(driver.counter("preemptions")) == little
    for index, prompt in enumerate(PROMPTS):
        tokens = driver.tokens(str(index))
        assert tokens == greedy(MODEL, prompt, TOKENS)
        hidden_TD = MODEL.whole([*prompt, *tokens])
        rows = [(meta, row) for meta, row in driver.rows[str(index)] if isinstance(meta, TokenHidden)]
        assert [meta.index for meta, _ in rows] == list(range(TOKENS))
        wanted = hidden_TD[len(prompt) - 1 : len(prompt) - 1 + TOKENS]
        torch.testing.assert_close(torch.cat([row for _, row in rows]), wanted)
        torch.testing.assert_close(driver.hidden(str(index))[0], hidden_TD[[0, len(prompt) - 1]])


def test_log_probabilities_that_stall_delay_only_their_requests():
    device = QueuedDevice()
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=3, block_size=4, max_in_flight=2))
    driver.ask("scored", PROMPTS[0], max_tokens=TOKENS, logprobs=1)
    driver.ask("later", PROMPTS[2], max_tokens=TOKENS, prompt_logprobs=1, order=(0, 1))
    driver.ask("plain", PROMPTS[1], max_tokens=TOKENS, order=(0, 2))
    others = {stream.name for stream in device.streams if not stream.name.endswith("-scores")}
    for _ in range(200):
        driver.tick()
        with torch.inference_mode():
            device.run(others)
    assert driver.done("plain").reason == "length"
    assert not {"scored", "later"} & driver.ends.keys()
    driver.run()
    for name, prompt in zip(("scored", "plain", "later"), PROMPTS, strict=True):
        assert driver.tokens(name) == greedy(MODEL, prompt, TOKENS)


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    "at", [("ar", "score_tokens"), ("ar-scores", "copy_scores"), ("ar", "accept_tokens"), ("ar", "post_update")]
)
@pytest.mark.parametrize("ahead", few(2, [1, 4, 2], SLOW))
def test_steps_that_fail_after_the_token_point_keep_handoffs_in_order(at: Place, ahead: int):
    device, planted = FaultyDevice(), []
    driver = ArDriver(MODEL, device, ArOptions(max_num_seqs=4, block_size=4, max_in_flight=ahead))
    for index in range(8):
        driver.ask(str(index), PROMPTS[index % 3], max_tokens=TOKENS, logprobs=1, order=(0, index))
    for _ in range(4):
        for _ in range(6):  # one by one, what failed together
            driver.tick()
        planted.append(device.faults.plant(at, 0, after=True))
    driver.run()
    assert not any(fault.left for fault in planted)
    done = [name for name, end in driver.ends.items() if isinstance(end, Done)]
    assert len(done) > 4
    for name in done:
        assert driver.tokens(name) == greedy(MODEL, PROMPTS[int(name) % 3], TOKENS)
        assert [chunk.first for chunk in driver.logprobs(name)] == list(range(TOKENS))


def settle(driver: ArDriver) -> None:
    """Until every request is over: host processors answer in a thread of their own."""
    for _ in range(100_000):
        with torch.inference_mode():
            driver.device.synchronize()
            driver.tick()
        if not driver.worker.requests:
            return
    raise AssertionError(f"no end: {driver.worker.usage()}")


def test_samples_of_one_seed_differ_and_each_repeats():
    seen: dict[int, tuple[int, ...]] = {}
    for sample in (0, 1, 2, 0):
        driver = ahead_driver()
        driver.ask("r", PROMPTS[0], sample_index=sample, max_tokens=TOKENS, temperature=1.0, seed=4)
        driver.run()
        tokens = tuple(driver.tokens("r"))
        assert seen.setdefault(sample, tokens) == tokens
    assert len(set(seen.values())) == 3


def test_reference_is_not_degenerate():
    assert len(set(greedy(MODEL, PROMPTS[0], TOKENS))) > 4
    assert not math.isnan(float(expected_logprobs(PROMPTS[0]).sum()))
