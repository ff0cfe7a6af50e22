"""Priority and cache salt, from the user to the stages."""

from pathlib import Path

import pytest

from omni.api import Omni
from omni.errors import InputError
from tests.support.echo_family import echo_model, echo_plugins
from tests.support.fake_graph import FakeGraph


def test_the_lowest_priority_is_admitted_first_then_the_oldest() -> None:
    graph = FakeGraph(max_active=1)
    graph.submit("first", "text")
    for name, priority in {"late": 5, "a": 0, "b": 0, "urgent": -1, "c": 0}.items():
        graph.submit(name, "text", priority=priority)
    order = []
    for name in ("first", "urgent", "a", "b", "c", "late"):
        assert graph.writer.held == {name}
        order.append(graph.writer.opened(name).rank)
        graph.finish(name)
    assert order == [(0, 0), (-1, 4), (0, 2), (0, 3), (0, 5), (5, 1)]
    assert graph.engine.idle


def test_rank_and_salt_reach_every_stage() -> None:
    graph = FakeGraph()
    graph.submit("r", "text", "audio", priority=3, cache_salt="tenant")
    for worker in graph.workers.values():
        message = worker.opened("r")
        assert (message.rank, message.cache_salt) == ((3, 0), "tenant")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("priority", "high", "priority: is a str; give an int"),
        ("priority", True, "priority: is a bool; give an int"),
        ("priority", 0.5, "priority: is a float; give an int"),
        ("cache_salt", 7, "cache_salt: is a int; give a string"),
        (
            "cache_salt",
            "a\ud800",
            "cache_salt: is no valid Unicode: surrogates not allowed at 1; remove lone surrogates",
        ),
    ],
)
def test_a_wrong_value_is_refused_at_once(name: str, value: object, problem: str, tmp_path: Path) -> None:
    with (
        Omni(echo_model(tmp_path), device="cpu", plugins=echo_plugins()) as omni,
        pytest.raises(InputError) as raised,
    ):
        omni.generate("hello", **{name: value})  # type: ignore[call-overload]
    assert problem in str(raised.value)


def test_a_request_with_both_is_answered(tmp_path: Path) -> None:
    with Omni(echo_model(tmp_path), device="cpu", plugins=echo_plugins()) as omni:
        assert omni.generate("hello", priority=-2, cache_salt="mine", stream=False).text == "hello"
        assert set(omni.counters()) == {"writer", "singer"}
