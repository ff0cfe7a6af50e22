"""The stages of an engine that are cut across engines: rows and pages that all ranks have, and the effect of one's fault."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from omni.engine import Placement
from omni.engine.cut import CutStages
from omni.engine.memory import StageMemory
from omni.engine.rows import MemoryPlan
from omni.errors import InputError, LostRankError, StageError
from omni.parallel import RankLayout, Ranks, SilentCommunicator
from omni.parallel.silent import SilentChannel
from omni.sampling import SamplingParams
from tests.support.fake_graph import FakeGraph


@dataclass
class Talks(SilentCommunicator):
    """quiet: how often it is silent at the moment."""

    rank: int
    size: int
    quiet: int = 0
    closed: bool = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.quiet += 1
        yield
        self.quiet -= 1

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class With(Ranks):
    """others: the values of the other ranks, by name. asked: names, in order."""

    others: Mapping[str, int]
    asked: list[str] = field(default_factory=list)

    def all_reduce_min(self, name: str, number: int) -> int:
        self.asked.append(name)
        return min(number, self.others[name])

    def all_gather_text(self, name: str, text: str) -> list[str]:
        raise AssertionError("not asked for")


def ranks(rank: int = 0, **others: int) -> With:
    return With(rank=rank, size=2, communicator=Talks(rank, 2), channel=SilentChannel(), others=others)


def memory(pages: int, rows: int | None) -> StageMemory:
    return StageMemory(weights=0, fixed=0, working=0, page_bytes=1, pages=pages, rows=rows)


DIVISION = MemoryPlan({}, {"writer": memory(100, 64), "speaker": memory(50, 64), "tower": memory(9, None)}, None)


def unchanged(division: MemoryPlan, rows: Mapping[str, int]) -> MemoryPlan:
    raise AssertionError("the rows are those of all")


def test_pages_are_the_least_of_all_ranks() -> None:
    cut = CutStages({"writer": ranks(rows=64, pages=80), "tower": ranks(rows=0, pages=10)})
    agreed = cut.agree(DIVISION, unchanged)
    assert {name: each.pages for name, each in agreed.memory.items()} == {"writer": 80, "speaker": 50, "tower": 9}
    assert agreed.memory["writer"].rows == 64


def test_rows_are_the_least_of_all_ranks_and_divided_again() -> None:
    cut = CutStages({"writer": ranks(rows=16, pages=1000), "speaker": ranks(rows=128, pages=1000)})

    def redivide(division: MemoryPlan, rows: Mapping[str, int]) -> MemoryPlan:
        assert division is DIVISION
        assert rows == {"writer": 16, "speaker": 64}
        return MemoryPlan({}, {"writer": memory(300, 16), "speaker": memory(200, 16)}, None)

    agreed = cut.agree(DIVISION, redivide)
    assert agreed.memory == {"writer": memory(300, 16), "speaker": memory(200, 16)}
    assert [each.asked for each in cut.ranks.values() if isinstance(each, With)] == [["rows", "pages"]] * 2


def test_whole_stages_wait_for_nobody() -> None:
    assert CutStages().agree(DIVISION, unchanged) == DIVISION


def test_all_communicators_are_silent_together_and_closed_together() -> None:
    cut = CutStages({"writer": ranks(), "speaker": ranks(rank=1)}, dict.fromkeys(("writer", "speaker"), RankLayout(2)))
    talks = [each.communicator for each in cut.ranks.values()]
    with cut.silent():
        assert [each.quiet for each in talks if isinstance(each, Talks)] == [1, 1]
    assert [each.quiet for each in talks if isinstance(each, Talks)] == [0, 0]
    assert cut.followed == {"speaker"}
    assert [(each.rank, each.size) for each in cut.silenced.ranks.values()] == [(0, 2), (1, 2)]
    cut.close()
    assert [each.closed for each in talks if isinstance(each, Talks)] == [True, True]


def test_ranks_alone_have_the_numbers_of_the_placement() -> None:
    placement = Placement({"a": ("cpu",), "b": ("cpu",)}, "cpu", {"b": ("cpu", "cpu/2", "cpu/3")}, {"b": RankLayout(3)})
    assert [(name, r.rank, r.size) for name, r in CutStages.alone(placement).ranks.items()] == [("b", 0, 3)]
    assert [(name, r.rank) for name, r in CutStages.alone(placement, "cpu/3").ranks.items()] == [("b", 2)]
    assert CutStages.alone(placement, "cpu/4").ranks == {}


@pytest.mark.plants_faults
@pytest.mark.parametrize(
    ("raised", "expected"),
    [(LostRankError("rank 1 has ended"), LostRankError), (RuntimeError("boom"), StageError)],
)
def test_a_fault_of_a_cut_stage_ends_the_engine(raised: Exception, expected: type[Exception]) -> None:
    graph = FakeGraph(cut=CutStages({"writer": ranks()}))

    def fail() -> bool:
        raise raised

    graph.workers["writer"].tick = fail  # type: ignore[method-assign]
    with pytest.raises(expected, match=str(raised)):
        graph.engine.tick()
    assert not graph.engine.closed_stages


@pytest.mark.parametrize(("rank", "idle"), [(0, False), (1, True)])
def test_usage_of_another_rank_does_not_keep_an_engine_busy(rank: int, idle: bool) -> None:
    graph = FakeGraph(cut=CutStages({"writer": ranks(rank=rank)}))
    graph.workers["writer"].usage = lambda: {"rows": 1}  # type: ignore[method-assign]
    assert graph.engine.idle is idle


def test_the_loop_goes_on_while_steps_of_rank_0_are_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a step is complete, the next one may find no host memory free, and no further message arrives."""
    graph = FakeGraph(cut=CutStages({"writer": ranks(rank=1)}))
    left = [3]
    waited_with: list[int] = []

    def tick() -> bool:
        left[0] = max(left[0] - 1, 0)
        return False

    def wait() -> None:
        waited_with.append(left[0])
        graph.engine.stop()

    graph.writer.tick = tick  # type: ignore[method-assign]
    graph.writer.usage = lambda: {"steps": left[0]}  # type: ignore[method-assign]
    monkeypatch.setattr(graph.engine._command_queue, "wait", wait)
    graph.engine.run()
    assert waited_with == [0]


def test_parameters_are_checked_at_rank_0() -> None:
    def refuse(sampling: SamplingParams, field: str) -> None:
        raise InputError(field, "is refused", "leave it out")

    graph = FakeGraph(cut=CutStages({"writer": ranks(), "speaker": ranks(rank=1)}))
    graph.writer.check = graph.speaker.check = refuse  # type: ignore[method-assign]
    graph.engine.check({"speaker": SamplingParams()}, {"speaker": "speaker.sampling"})
    with pytest.raises(InputError, match=r"writer\.sampling"):
        graph.engine.check({"writer": SamplingParams()}, {"writer": "writer.sampling"})
