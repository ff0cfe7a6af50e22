"""The order of stages in turns, and the chunks of a vocoder, by slack."""

from pathlib import Path

import pytest

from omni.device import PhaseCategory
from omni.timeline import MAIN, HostSpan, Interval, PhaseSpan, Trace, read_trace, write_trace
from omni.timeline.merge import merge
from omni.timeline.report import make_report, report_lines
from omni.timeline.slack import ChunkReport, SlackSpread, StageLaunches, TurnOrder

TURN = 1000


class MadeTurns:
    """A trace whose turns take `TURN` nanoseconds each, one after another. Stages launch every 100 of them."""

    def __init__(self) -> None:
        self._phases: list[PhaseSpan] = []
        self._host: list[HostSpan] = []
        self._at = 0

    def turn(
        self, *stages: str, prefill: int = 0, category: PhaseCategory = PhaseCategory.FORWARD, **numbers: int
    ) -> None:
        """stages: in the order of their launches. prefill: prompt tokens of the thinker's step."""
        start = self._at
        said = dict.fromkeys(("sound_first", "others_first", "short", "awaited", "held"), 0) | numbers
        self._host.append(HostSpan("engine", "order", said, Interval(start, start + TURN)))
        for index, stage in enumerate(stages):
            took = Interval(start + 100 * index, start + 100 * index + 50)
            self._host.append(HostSpan("engine", stage, {}, took))
            for _ in range(2):  # a step has several phases
                self._phases.append(
                    PhaseSpan(
                        stage=stage, lane=MAIN, phase="run", category=category, step=None, launched=took, ran=took
                    )
                )
            if stage == "thinker":
                self._host.append(HostSpan(stage, "execute_model", {"prefill": prefill}, took))
        self._at += TURN

    def chunks(self, **numbers: int) -> None:
        self._host.append(HostSpan("vocoder", "decode_chunks", numbers, Interval(self._at, self._at)))

    @property
    def trace(self) -> Trace:
        return Trace("cuda:0 (made)", tuple(self._phases), host=tuple(self._host))


def launches(stage: str, turns: int, first: int, last: int, prefill: int | None = None) -> StageLaunches:
    return StageLaunches(stage=stage, turns=turns, first=first, last=last, prefill=prefill)


@pytest.fixture
def made() -> MadeTurns:
    made = MadeTurns()
    for slack, held, stages in (
        (100, 1, ("talker",)),
        (200, 0, ("talker", "vocoder", "thinker")),
        (0, 0, ("thinker",)),
    ):
        made.turn(*stages, sound_first=1, short=1, awaited=1, slack_ms=slack, held=held, prefill=512 - slack)
    made.turn("talker", "thinker", sound_first=1, awaited=1)
    made.turn("talker", "thinker", sound_first=1, slack_ms=900)
    made.turn("thinker", "talker", others_first=1, slack_ms=1500, prefill=2000)
    made.turn("thinker", "talker", slack_ms=2500)
    made.turn("thinker", category=PhaseCategory.PAYLOAD)
    return made


def test_turns_are_counted_by_the_reason_of_their_order(made: MadeTurns) -> None:
    short, awaited, scarce, ample, nobody = make_report(made.trace).turns
    assert short.slack is not None
    assert [short.slack.p10, short.slack.p50, short.slack.p90] == pytest.approx([0.02, 0.1, 0.18])
    assert short == TurnOrder(
        listeners="a listener is short of sound",
        order="sound stages first",
        turns=3,
        held=1,
        slack=short.slack,
        stages=(launches("talker", 2, 1, 0), launches("vocoder", 1, 0, 1), launches("thinker", 2, 0, 1, prefill=512)),
    )
    sound_first = (launches("talker", 1, 1, 0), launches("thinker", 1, 0, 1, prefill=0))
    assert (awaited.listeners, awaited.slack, awaited.stages) == ("one waits at the sound stages", None, sound_first)
    assert (scarce.listeners, scarce.stages) == ("slack is not ample", sound_first)
    assert (ample.listeners, ample.order) == ("ample slack, a new prompt", "others first")
    assert ample.stages == (launches("talker", 1, 0, 1), launches("thinker", 1, 1, 0, prefill=2000))
    assert (nobody.order, nobody.turns) == ("as in the pipeline", 2)
    assert nobody.stages == (launches("talker", 1, 0, 1), launches("thinker", 1, 1, 0, prefill=0)), "payload is no step"


def test_chunks_are_counted_by_size_with_their_least_slack(made: MadeTurns) -> None:
    made.chunks(rows=3, frames=4, first=1)
    for slack in (1000, 3000):
        made.chunks(rows=2, frames=25, first=0, slack_ms=slack)
    made.chunks(rows=1, frames=4, first=0, slack_ms=-50)
    first, small, large = make_report(made.trace).chunks
    assert first == ChunkReport(stage="vocoder", frames=4, first=True, batches=1, chunks=3, slack=None)
    assert (small.frames, small.first, small.slack) == (4, False, SlackSpread(p10=-0.05, p50=-0.05, p90=-0.05))
    assert (large.frames, large.batches, large.chunks) == (25, 2, 4)
    assert large.slack == SlackSpread(p10=1.2, p50=2.0, p90=2.8)


def test_the_report_says_who_launched_first_and_survives_the_file(made: MadeTurns, tmp_path: Path) -> None:
    made.chunks(rows=3, frames=4, first=1)
    made.chunks(rows=2, frames=25, first=0, slack_ms=1234)
    write_trace(made.trace, tmp_path / "turns.json")
    lines = [" ".join(line.split()) for line in report_lines(make_report(read_trace(tmp_path / "turns.json")))]
    at = lines.index("a listener is short of sound sound stages first 3 1 0.02 0.10 0.18")
    assert lines[at + 1 : at + 4] == ["talker 2 1 0", "vocoder 1 0 1", "thinker 2 0 1 512"]
    assert lines[-2:] == ["vocoder 4, first 1 3", "vocoder 25 1 2 1.23 1.23 1.23"]


def test_turns_of_two_engines_count_only_their_own_stages(made: MadeTurns) -> None:
    other = MadeTurns()
    for _ in range(8):
        other.turn("writer", sound_first=1, slack_ms=900)
    merged = make_report(merge({"cuda:0": made.trace, "cuda:1": other.trace}, "engine")).turns
    alone = make_report(made.trace).turns
    assert [one.stages for one in merged if one.listeners != "slack is not ample"] == [
        one.stages for one in alone if one.listeners != "slack is not ample"
    ]
    (scarce,) = (one for one in merged if one.listeners == "slack is not ample")
    assert launches("writer", 8, 0, 0) in scarce.stages


def test_a_trace_without_listeners_has_neither() -> None:
    report = make_report(Trace("cpu", ()))
    assert (report.turns, report.chunks) == ((), ())
    assert not any("listeners" in line for line in report_lines(report))
