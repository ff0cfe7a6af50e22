"""Mixed traffic on the simulated device: every request has the results that it has alone, and no access is out of order."""

from collections import Counter
from collections.abc import Set

import pytest

from omni.testing import SimulatedDevice
from tests.support.hidden_worlds import TokensWorld
from tests.support.mixed_traffic import make_world, run_seed
from tests.support.tiers import SLOW, few
from tests.support.traffic_events import APART, HAPPENS, POOLS
from tests.support.traffic_scenario import scenario
from tests.support.traffic_world import World

pytestmark = pytest.mark.thorough

FEW = [
    ("hidden", range(10, 11), {"aborts"}),
    ("codec", range(2), {"ran ahead"}),
    ("omni", range(9, 10), {"cached_tokens"}),
    ("pooled", range(6, 7), {"cached_tokens"}),
    ("apart", range(36, 37), {"stalls"}),
    ("marked", range(4, 5), {"cached_tokens", "constrained"}),
]
"""Seeds of the default run, and the events that they lack. A seed has the same events in every run."""
MANY = {
    "hidden": 200,
    "codec": 120,
    "conditioned": 50,
    "omni": 40,
    "by slack": 40,
    "pooled": 40,
    "apart": 40,
    "marked": 20,
    "pooled codec": 10,
}
"""Seeds by world."""
LACKS = {
    "hidden": set(),
    "codec": {"constrained", "scored"},
    "conditioned": {"constrained", "scored"},
    "omni": {"constrained", "pauses and resumes"},
    "by slack": {"constrained", "pauses and resumes"},
    "pooled": set(),
    "apart": set(),
    "marked": set(),
    "pooled codec": {"constrained", "scored", "copied pieces", "full pools"},
}
"""Events that a world's requests do not bring about. Frames of codes are small: all that the credit allows is read in the pool."""


def run_seeds(where: World, seeds: range) -> Counter[str]:
    """What happened in all. Raises an ExceptionGroup of what went wrong, each with its seed."""
    totals: Counter[str] = Counter()
    wrong: list[Exception] = []
    for seed in seeds:
        device = SimulatedDevice(seed)
        try:
            totals += run_seed(where, seed, device).counters
        except Exception as error:
            wrong.append(error)
        totals["late"] += device.latest > 5
    if wrong:
        raise ExceptionGroup(f"{len(wrong)} of {len(seeds)} seeds of {where.name}", wrong)
    assert totals["late"] > 0.8 * len(seeds), "the device was hardly behind"
    return totals


def assert_mixed(name: str, totals: Counter[str], seeds: int, lacks: Set[str] = frozenset()) -> None:
    """Each kind of event occurred, except those in `lacks`, at least once in five seeds on average."""
    pools = POOLS if name in ("pooled", "apart", "marked", "pooled codec") else set()
    apart = APART if name in ("apart", "marked") else set()
    wanted = (HAPPENS | pools | apart | {"preemptions", "cached_tokens", "spilled_rows"}) - LACKS[name] - lacks
    rare = {event: totals[event] for event in wanted if totals[event] < seeds / 5}
    assert not rare, f"{rare} in {seeds} seeds: {totals}"


@pytest.mark.parametrize(("name", "seeds", "lacks"), FEW)
def test_batched_requests_equal_requests_alone(name: str, seeds: range, lacks: set[str]):
    assert_mixed(name, run_seeds(make_world(name), seeds), len(seeds), lacks)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_batched_requests_equal_requests_alone_in_500_seeds(name: str):
    where = make_world(name)
    assert_mixed(name, run_seeds(where, range(MANY[name])), MANY[name])


@pytest.mark.parametrize("seed", few(1, [8, 7, *range(9, 27)], SLOW))
def test_a_slow_reader_of_tokens_has_no_more_than_its_credit_unread(seed: int):
    """It is in another engine, which gets payloads without tensors much faster than it reads them."""
    world = make_world(TokensWorld.name)
    in_flight = int(str(scenario(world, seed).settings["writer.max_in_flight"]))
    played = run_seed(world, seed, SimulatedDevice(seed))
    assert 0 < played.counters["most_unread"] <= TokensWorld.CREDIT + 2 * in_flight
    assert played.counters["pauses and resumes"] > 0


@pytest.mark.parametrize("name", few(1, ["hidden", "codec", "apart"], SLOW))
def test_a_seed_replays_exactly(name: str):
    first, again = SimulatedDevice(7), SimulatedDevice(7)
    heard = [run_seed(make_world(name), 7, device).received for device in (first, again)]
    assert first.trace == again.trace
    assert first.now == again.now
    assert heard[0].keys() == heard[1].keys()
    assert all(heard[0][request].exact == heard[1][request].exact for request in heard[0])


def harmed(where: World, seed: int) -> tuple[SimulatedDevice, Exception | None]:
    """What goes wrong where a wait is left out."""
    device = SimulatedDevice(seed, without="omni_local.connector.LocalRef.freed#1")
    try:
        run_seed(where, seed, device)
    except Exception as error:
        return device, error
    return device, None


@pytest.mark.slow
def test_a_failing_seed_is_named_and_fails_again_in_the_same_way():
    where = make_world("codec")
    seed = next(seed for seed in range(20) if harmed(where, seed)[1] is not None)
    (first, error), (again, other) = harmed(where, seed), harmed(where, seed)
    assert error is not None
    assert error.__notes__[-1].startswith(f"world 'codec', seed {seed}")
    assert (repr(error), error.__notes__) == (repr(other), other.__notes__ if other is not None else [])
    assert first.trace == again.trace
    assert [str(race) for race in first.races] == [str(race) for race in again.races]


def test_each_seed_draws_other_traffic():
    plans = [scenario(make_world("hidden"), seed) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    assert any(ask.leaves is not None for plan in plans for ask in plan.asks)
    assert any(plan.stalls for plan in plans)
    assert {plan.settings["writer.max_in_flight"] for plan in plans} == {1, 2, 4, 8}
