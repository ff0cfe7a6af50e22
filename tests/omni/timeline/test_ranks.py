"""The steps of two ranks with different layers, in one trace."""

from pathlib import Path

import pytest

from omni.timeline import write_trace
from omni.timeline.merge import merge
from omni.timeline.picture import draw, excerpt_of
from omni.timeline.read import read_trace
from omni.timeline.report import make_report, report_lines
from omni.timeline.trace import Trace
from tests.omni.timeline.made_trace import LAUNCH, PHASES, STEP, made_ranks, made_trace


def merged(ahead: int = 0, late: bool = False) -> Trace:
    return merge(made_ranks(ahead, late), "engine")


def test_ranks_and_replicas_have_lanes_of_their_own(tmp_path: Path) -> None:
    trace = merged()
    assert set(trace.stages) == {"thinker cuda:0", "thinker cuda:1"}
    assert merge({"cuda:0": made_trace((0,)), "cuda:1": made_trace((0,), stage="talker")}, "engine").stages == (
        "thinker",
        "talker",
    )
    assert [one.stage for one in make_report(trace).decoding] == ["thinker cuda:0", "thinker cuda:1"]
    write_trace(trace, tmp_path / "ranks.json")
    assert read_trace(tmp_path / "ranks.json") == trace
    draw([("two ranks", trace, excerpt_of(trace, stage="thinker cuda:0"))], tmp_path / "ranks.html")
    assert "thinker cuda:1" in (tmp_path / "ranks.html").read_text()


@pytest.mark.parametrize("ahead", [0, STEP // 2])
def test_a_rank_that_runs_ahead_is_explained(ahead: int) -> None:
    trace = merged(ahead)
    (one,) = make_report(trace).ranks
    assert (one.last, one.before, one.steps, one.late) == ("thinker cuda:0", "thinker cuda:1", 4, 0)
    text = "\n".join(report_lines(make_report(trace)))
    assert "In all 4 steps thinker cuda:1 ended its forward first, and then thinker cuda:0." in text
    if not ahead:
        assert (one.ahead, one.example, one.prompts) == (0, None, False)
        assert "thinker cuda:1 began none of 4 steps before thinker cuda:0 began the step before." in text
        return
    assert (one.ahead, one.example, one.prompts) == (3, (12, ahead / 1000), True)
    assert "thinker cuda:1 began 3 of 4 steps before thinker cuda:0 began the step before, though that was" in text
    assert f"launched earlier: step 12 {ahead / 1000:.1f} before step 11, one with prompts, for example." in text
    assert "That is not a bug" in text


def test_a_forward_before_its_hidden_states_is_a_wrong_trace() -> None:
    (one,) = make_report(merged(late=True)).ranks
    assert one.late == 1
    lines = list(report_lines(make_report(merged(late=True))))
    assert "1 steps of thinker cuda:0 ended their forward before thinker cuda:1 had: the trace is wrong." in lines


def test_replicas_are_not_taken_for_ranks() -> None:
    trace = merge({"cuda:0": made_trace((0, 0)), "cuda:1": made_trace((0, 0))}, "engine")
    assert make_report(trace).ranks == ()
    assert len(make_report(trace).decoding) == 2


def test_lanes_of_ranks_keep_their_launches() -> None:
    assert make_report(merged(STEP // 2)).order.broken == 0
    launches = [span.launched.length for span in merged().phases]
    assert set(launches) == {LAUNCH}
    assert len(launches) == 4 * (len(PHASES) + 3)
