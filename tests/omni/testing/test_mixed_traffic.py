"""Mixed traffic on the simulated device: every request gets what it gets alone, and no access is out of order."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from omni.testing import SimulatedDevice
from support.mixed_traffic import Played, check, play, scenario
from support.mixed_worlds import CodecWorld, HiddenWorld, OmniWorld, World


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


@cache
def world(name: str, folder: Path) -> World:
    worlds: dict[str, Any] = {"hidden": HiddenWorld, "codec": CodecWorld}
    return OmniWorld() if name == "omni" else worlds[name](folder / name)


def run(where: World, seed: int) -> tuple[SimulatedDevice, Played]:
    plan, device = scenario(where, seed), SimulatedDevice(seed)
    played = play(where, plan, device)
    check(where, plan, played)
    device.assert_no_races()
    return device, played


@pytest.mark.parametrize(("name", "seeds"), [("hidden", 6), ("codec", 5), ("omni", 2)])
def test_each_request_gets_what_it_gets_alone(name: str, seeds: int, folder: Path):
    totals: Counter[str] = Counter()
    for seed in range(seeds):
        device, played = run(world(name, folder), seed)
        totals += played.counters
        assert device.latest > 5, "work was late"
    if name != "omni":
        assert totals["preemptions"] > 0
        assert totals["spilled_rows"] > 0
        assert totals["cached_tokens"] > 0


@pytest.mark.parametrize("name", ["hidden", "codec"])
def test_a_seed_replays_exactly(name: str, folder: Path):
    first, again = (run(world(name, folder), 4)[0] for _ in range(2))
    assert first.trace == again.trace
    assert first.now == again.now


def test_seeds_differ(folder: Path):
    plans = [scenario(world("hidden", folder), seed) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    assert any(ask.leaves is not None for plan in plans for ask in plan.asks)
    assert any(plan.stalls for plan in plans)
    assert {plan.settings["writer.max_in_flight"] for plan in plans} == {1, 2, 4, 8}
