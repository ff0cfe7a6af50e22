"""Reports of traces whose every time is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni.device import PhaseCategory
from omni.timeline import MAIN, HostSpan, Interval, PhaseSpan, Trace
from omni.timeline.report import Decoding, PhaseReport, Spread, make_report, report_lines
from omni.timeline.trace import RECORDING, Busy, steps_of
from omni.utils.draft_counts import DraftCounts
from tests.omni.timeline.made_trace import LAUNCH, PHASES, STEP, made_step, made_trace

GAPS = (5_000, 8_000, 20_000, 4_000)


def decoding(trace: Trace) -> Decoding:
    (one,) = make_report(trace).decoding
    return one


def spread(found: Spread | None) -> Spread:
    assert found is not None
    return found


def phase_of(trace: Trace, name: str | None, category: str) -> PhaseReport:
    (one,) = (one for one in make_report(trace).phases if (one.phase, one.category) == (name, category))
    return one


def test_idle_between_steps_is_the_gaps():
    idle = spread(decoding(made_trace(GAPS)).idle)
    assert (idle.count, idle.total) == (4, 37.0)
    assert [idle.p50, idle.p90, idle.p99] == pytest.approx(np.percentile([5, 8, 20, 4], [50, 90, 99]).tolist())


def test_periods_and_launch_gaps():
    one = decoding(made_trace((5_000, 5_000)))
    assert one.steps == 3
    assert spread(one.period).p50 == (STEP + 5_000) / 1000
    assert one.launch_period == one.period, "each is launched as long ahead as the others"
    launches = (2 * len(PHASES) - 1) * LAUNCH
    assert spread(one.launch_gap).p50 == (STEP + 5_000 - launches) / 1000


def test_steps_with_prompts_and_steps_that_do_not_follow_are_left_out():
    trace = made_trace(GAPS)
    run = 20_000_000
    prompt, host = made_step("thinker", 15, run, run, prefill=512)
    late, late_host = made_step("thinker", 17, run + 2_000_000, run + 2_000_000)
    more = replace(trace, phases=(*trace.phases, *prompt, *late), host=(*trace.host, *host, *late_host))
    assert decoding(more).idle == decoding(trace).idle
    assert decoding(more).steps == decoding(trace).steps + 1


def test_work_between_steps_is_no_idle_time():
    trace = made_trace((20_000,))
    end = steps_of(trace, "thinker")[0].ran.end
    took = Interval(end + 1_000, end + 7_000)
    gather = PhaseSpan(
        stage="thinker",
        lane=MAIN,
        phase="gather_rows",
        category=PhaseCategory.PAYLOAD,
        step=None,
        launched=took,
        ran=took,
    )
    assert spread(decoding(replace(trace, phases=(*trace.phases, gather))).idle).p50 == 14.0


def test_a_wait_inside_a_step_is_no_idle_time_between_steps():
    trace = made_trace((5_000,))
    spans = list(trace.phases)
    late = next(n for n, span in enumerate(spans) if span.phase == "post_update")
    ran = spans[late].ran
    spans[late] = replace(spans[late], ran=Interval(ran.start + 3_000, ran.end + 3_000))
    one = decoding(replace(trace, phases=tuple(spans)))
    assert (spread(one.waits).total, spread(one.idle).p50) == (3.0, 2.0)


def test_categories_of_a_step_are_sums_of_its_phases():
    categories = decoding(made_trace(GAPS)).categories
    assert {name: one.p50 for name, one in categories.items()} == {
        "preprocess": 15.0,
        "forward": 700.0,
        "logits": 60.0,
        "sample": 40.0,
        "postprocess": 8.0,
    }
    assert all(one.count == 5 for one in categories.values())


def test_phases_and_categories_with_several_entries():
    trace = made_trace(GAPS)
    sampled, both = phase_of(trace, "sample_rows", "sample"), phase_of(trace, None, "sample")
    assert (sampled.run.count, sampled.run.p50, sampled.run.total) == (5, 30.0, 150.0)
    assert (both.run.count, both.run.p50, both.run.total) == (10, 20.0, 200.0)
    assert sampled.launch.p50 == LAUNCH / 1000
    copied = phase_of(trace, "copy_scores", "scores")
    assert (copied.lane, copied.run.p50) == ("scores", 4.0)


def test_the_next_step_waits_for_the_work_after_the_token_point():
    one = decoding(made_trace((5_000, 5_000)))
    behind = spread(one.behind_token)
    assert (behind.count, behind.p99) == (2, 8.0 + 5.0), "post_update, and the gap"
    assert "token point" not in one.categories, "a moment takes no time"


def test_host_time_of_both_halves_of_a_step():
    host = {one.name: one.took for one in make_report(made_trace(GAPS)).host}
    assert (host["execute_model"].count, host["execute_model"].p50) == (5, 36.0)
    assert host["sample_tokens"].p99 == 73.0


def test_host_time_without_that_of_recording():
    trace = made_trace(GAPS)
    assert all(one.unrecorded is None for one in make_report(trace).host), "it was not measured"
    host = [replace(span, numbers={**span.numbers, RECORDING: 20_000}) for span in trace.host]
    report = make_report(replace(trace, host=tuple(host)))
    for one in report.host:
        assert one.unrecorded is not None
        assert one.unrecorded.p50 == pytest.approx(one.took.p50 - 20)
        assert one.unrecorded.count == one.took.count
    assert "\n".join(report_lines(report)).count("without recording") == len(report.host)


def test_drafts_of_all_steps():
    trace = made_trace(GAPS)
    numbers, read = [step.number for step in steps_of(trace, "thinker")], []
    for step, accepted in zip(numbers[:3], (2, 0, 1), strict=True):
        counts = DraftCounts()
        counts.add(2, accepted)
        took = Interval(1000 * step, 1000 * step + 10)
        read.append(HostSpan("thinker", "read_drafts", {"step": step, **counts.numbers()}, took))
    drafted = replace(trace, host=(*trace.host, *read))
    assert steps_of(drafted, "thinker")[2].numbers["accepted_drafts_1"] == 1
    (one,) = make_report(drafted).drafts
    assert (one.stage, one.steps, one.drafted, one.accepted) == ("thinker", 3, 6, 3)
    assert (one.acceptance, one.mean_length) == ((2 / 3, 1 / 3), 2.0)
    lines = list(report_lines(make_report(drafted)))
    head = lines.index("stage    drafted  accepted  tokens per drafted step  accepted by position")
    assert lines[head + 1].split() == ["thinker", "6", "3", "2.00", "67%", "33%"]
    assert not make_report(trace).drafts
    assert not any("accepted" in line for line in report_lines(make_report(trace)))


def test_how_much_of_another_stream_is_behind_the_main_one():
    # The copy runs from 2 to 6 us after the token point: 8 us of post_update, then 1 us of nothing, then the next step.
    (lane,) = make_report(made_trace((1_000, 1_000))).lanes
    assert (lane.stage, lane.lane, lane.busy, lane.hidden) == ("thinker", "scores", 12.0, 1.0)
    trace = made_trace((100_000,))
    spans = tuple(
        replace(s, ran=Interval(s.ran.start + 3_000, s.ran.end + 3_000)) if s.lane == "scores" else s
        for s in trace.phases
    )
    (lane,) = make_report(replace(trace, phases=spans)).lanes
    assert lane.hidden == 3 / 4, "from 5 to 9 us, and post_update is over after 8"


def span_on(lane: str, launch: int, run: int, length: int = 5) -> PhaseSpan:
    launched = Interval(launch, launch + 1)
    return PhaseSpan(
        stage="s",
        lane=lane,
        phase=f"p{launch}",
        category=PhaseCategory.OTHER,
        step=None,
        launched=launched,
        ran=Interval(run, run + length),
    )


def test_launches_that_look_out_of_order_are_no_bug():
    # Stage 0's next decode is launched before stage 1's prefill, which runs first.
    order = make_report(Trace("d", (span_on("main", 0, 100), span_on("other", 10, 20)))).order
    assert (order.overtaken, order.broken) == (1, 0)
    assert order.example == ("s: p0", "s: p10")
    lines = "\n".join(report_lines(make_report(Trace("d", (span_on("main", 0, 100), span_on("other", 10, 20))))))
    assert "That is not a bug" in lines


def test_launches_in_order_say_nothing_and_a_broken_stream_does():
    assert make_report(Trace("d", (span_on("main", 0, 20), span_on("other", 10, 22)))).order.overtaken == 0
    order = make_report(Trace("d", (span_on("main", 0, 100), span_on("main", 10, 20)))).order
    assert (order.overtaken, order.broken) == (0, 1)


def test_the_report_names_dropped_and_unfinished_spans():
    trace = replace(made_trace(GAPS), dropped=12, unfinished=3)
    lines = list(report_lines(make_report(trace)))
    assert "12 older spans were dropped: the buffer was full" in lines
    assert "3 phases had not run when the recording ended, and are not counted" in lines
    assert "launches and runs may be shifted against each other by 3.0" in lines
    assert any(line.split() == ["device", "idle", "between", "steps", "6.5", "16.4", "19.6"] for line in lines)


def test_a_trace_without_steps_has_phases_only():
    trace = Trace("d", (span_on("main", 0, 20),))
    report = make_report(trace)
    assert report.decoding == ()
    assert report.phases[0].run.p50 == 0.005
    assert any("p0" in line for line in report_lines(report))


pieces = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: Interval(pair[0], sum(pair))), max_size=8
)


def moments(intervals: list[Interval]) -> set[int]:
    return {moment for one in intervals for moment in range(one.start, one.end)}


@given(pieces, pieces, st.integers(0, 50), st.integers(1, 20))
def test_operations_on_intervals_equal_those_on_sets_of_moments(
    one: list[Interval], two: list[Interval], start: int, length: int
):
    mine, theirs, window = moments(one), moments(two), Interval(start, start + length)
    busy = Busy(one)
    inside = set(range(window.start, window.end))
    assert busy.total == len(mine)
    assert busy.shared(Busy(two)) == len(mine & theirs)
    assert moments(busy.gaps(window)) == inside - mine


def test_an_empty_interval_divides_no_gap():
    assert Busy([Interval(5, 5), Interval(8, 9)]).gaps(Interval(0, 10)) == [Interval(0, 8), Interval(9, 10)]
