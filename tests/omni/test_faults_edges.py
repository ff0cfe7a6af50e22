"""An exception raised once in an adapter, in a connector or in a sink fails one request, and is named after the edge."""

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from omni.engine import Plan
from omni.payload import Payload
from omni.pipeline.adapter import Adapter, AdapterFactory
from omni.testing.faults import Faults, planted
from omni_local.connector import LocalPending, LocalReceiver, LocalSender
from tests.omni.fault_bench import CHATS, NO_CACHES, SHAPE, TOGETHER, failures
from tests.support.faults import spoil
from tests.support.omni_engine import OmniEngine
from tests.support.pressure import overrides
from tests.support.reference import tiny_checkpoint
from tests.support.tiers import few

pytestmark = pytest.mark.thorough

ARRIVALS = [0, 1, 2, 4]
DOING = {"open": "opening its adapter", "push": "adapting a payload", "finish": "adapting a payload"}


class FaultyAdapter:
    def __init__(self, faults: Faults, edge: str, adapter: Adapter) -> None:
        self._faults = faults
        self._edge = edge
        self._adapter = adapter

    def push(self, payload: Payload) -> Sequence[Payload]:
        return self._faults.call((self._edge, "push"), lambda: self._adapter.push(payload), planted)

    def finish(self, reason: str) -> Sequence[Payload]:
        return self._faults.call((self._edge, "finish"), lambda: self._adapter.finish(reason), planted)


@pytest.fixture(scope="module")
def bench() -> tuple[OmniEngine, Faults]:
    """An engine whose adapters can fail."""
    faults = Faults()

    def faulty(edge: str, factory: AdapterFactory) -> AdapterFactory:
        def make(args: msgspec.Struct | None) -> Adapter:
            made = faults.call((edge, "open"), lambda: factory(args), planted)
            return FaultyAdapter(faults, edge, made)

        return make

    def change(plan: Plan) -> Plan:
        return replace(plan, adapters={edge: faulty(edge, factory) for edge, factory in plan.adapters.items()})

    return OmniEngine(tiny_checkpoint(**SHAPE), overrides(NO_CACHES, TOGETHER), change=change), faults


@pytest.mark.parametrize("after", few(1, [True, False]), ids=["after", "instead"])
@pytest.mark.parametrize("method", few(1, DOING))
def test_an_error_in_an_adapter_fails_one_request(bench: tuple[OmniEngine, Faults], method: str, after: bool) -> None:
    engine, faults = bench
    chance = random.Random(method)
    faults.planted = None
    faults.seen.clear()
    assert failures(engine.run(CHATS, ARRIVALS)) == []
    counts = {edge: count for (edge, what), count in faults.seen.items() if what == method}
    assert len(counts) == 5, "an edge never does it"

    for edge, count in counts.items():
        fault = faults.plant((edge, method), chance.randrange(count), after=after)
        (error,) = failures(engine.run(CHATS, ARRIVALS))
        assert str(error).startswith(f"stage '{edge}' failed while {DOING[method]}: PlantedError: planted (")
        assert not fault.left


@pytest.mark.parametrize(
    ("owner", "method", "doing"),
    few(
        1,
        [
            (LocalSender, "send", "sending a payload"),
            (LocalReceiver, "receive", "receiving a payload"),
            (LocalPending, "poll", "receiving a payload"),
        ],
    ),
)
@pytest.mark.parametrize("after", few(1, [False, True]), ids=["instead", "after"])
def test_an_error_in_a_connector_fails_one_request(
    bench: tuple[OmniEngine, Faults],
    owner: type,
    method: str,
    doing: str,
    after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, chance, place = bench[0], random.Random(method), (owner.__name__, method)
    faults = spoil(monkeypatch, owner, method)
    assert failures(engine.run(CHATS, ARRIVALS)) == []
    count = faults.seen[place]
    assert count > 50

    for _ in range(2):
        fault = faults.plant(place, chance.randrange(count), after=after)
        (error,) = failures(engine.run(CHATS, ARRIVALS))
        assert "->" in error.stage
        assert error.doing == doing
        assert error.problem.startswith("PlantedError: planted (")
        assert not fault.left
