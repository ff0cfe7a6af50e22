"""Traces as files: the Trace Event Format, there and back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni.device import PhaseCategory
from omni.errors import InputError
from omni.timeline import MAIN, HostSpan, Interval, PhaseSpan, Trace, read_trace, write_trace
from omni.timeline.trace import steps_of
from omni.utils.draft_counts import DraftCounts
from tests.omni.timeline.made_trace import made_trace

Event = dict[str, Any]


def written(trace: Trace, folder: Path) -> dict[str, Any]:
    write_trace(trace, folder / "trace.json")
    file: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return file


def of_kind(file: dict[str, Any], kind: str) -> list[Event]:
    return [event for event in file["traceEvents"] if event["ph"] == kind]


def test_events_follow_the_trace_event_format(tmp_path: Path):
    trace = made_trace((5000, 7000))
    file = written(trace, tmp_path)
    assert set(file) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert file["displayTimeUnit"] in ("ms", "ns")
    assert {event["ph"] for event in file["traceEvents"]} == {"M", "X", "s", "f", "i"}
    for event in file["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert isinstance(event["tid"], int)
            assert event["ts"] >= 0
    assert all(event["dur"] >= 0 for event in of_kind(file, "X"))
    assert all(event["s"] in ("g", "p", "t") for event in of_kind(file, "i"))
    assert all(event["bp"] == "e" for event in of_kind(file, "f"))
    known = {"process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index"}
    assert {event["name"] for event in of_kind(file, "M")} == known


def test_every_process_and_thread_has_a_name(tmp_path: Path):
    file = written(made_trace((5000,)), tmp_path)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in of_kind(file, "M") if e["name"] == "thread_name"}
    used = {(event["pid"], event["tid"]) for event in file["traceEvents"] if event["ph"] != "M"}
    assert used == set(names)
    assert sorted(names.values()) == ["host", "main", "scores"]
    (process,) = (event for event in of_kind(file, "M") if event["name"] == "process_name")
    assert process["args"] == {"name": "thinker"}


def test_an_arrow_leads_from_inside_each_launch_to_its_run(tmp_path: Path):
    trace = made_trace((5000,))
    file = written(trace, tmp_path)
    slices = {(e["cat"], e["args"]["id"]): e for e in of_kind(file, "X") if "id" in e["args"]}
    arrows = [(of_kind(file, "s"), "launch"), (of_kind(file, "f"), "run")]
    for ends, category in arrows:
        assert len(ends) == len(trace.phases)
        for end in ends:
            inside = slices[category, end["id"]]
            assert (inside["pid"], inside["tid"]) == (end["pid"], end["tid"])
            assert inside["ts"] <= end["ts"] <= inside["ts"] + inside["dur"]


def test_slices_of_a_thread_nest(tmp_path: Path):
    """The format asks for it: of two slices of one thread, one holds the other or they are apart."""
    file = written(made_trace((5000, 90_000)), tmp_path)
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in of_kind(file, "X"):
        times = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        threads.setdefault((event["pid"], event["tid"]), []).append(times)
    for spans in threads.values():
        for start, end in spans:
            assert not any(start < other < end < last for other, last in spans)


def test_a_step_s_token_point_is_marked_where_its_tokens_are_there(tmp_path: Path):
    trace = made_trace((5000,))
    points = of_kind(written(trace, tmp_path), "i")
    accepted = [span.ran.end / 1000 for span in trace.phases if span.phase == "accept_tokens"]
    assert [(point["name"], point["ts"]) for point in points] == [("token point", end) for end in accepted]
    assert [point["args"] for point in points] == [{"step": step.number} for step in steps_of(trace, "thinker")]


def test_a_step_s_token_point_has_its_drafts(tmp_path: Path):
    trace = made_trace((5000,))
    counts, step = DraftCounts(), steps_of(trace, "thinker")[1].number
    counts.add(3, 1)
    read = HostSpan("thinker", "read_drafts", {"step": step, **counts.numbers()}, Interval(10, 20))
    points = of_kind(written(replace(trace, host=(*trace.host, read)), tmp_path), "i")
    assert [point["args"].get("drafted_tokens") for point in points] == [None, 3]
    assert DraftCounts.of(points[1]["args"]).numbers() == counts.numbers()


times = st.integers(0, 10**12)
names = st.sampled_from(["thinker", "talker", "transfer"])


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    start = draw(times)
    return Interval(start, start + draw(st.integers(0, 10**9)))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    span = st.builds(
        PhaseSpan,
        stage=names,
        lane=st.sampled_from([MAIN, "copy", "payload"]),
        phase=st.text(min_size=1, max_size=8),
        category=st.sampled_from(PhaseCategory),
        step=st.none() | st.integers(0, 9),
        launched=intervals(),
        ran=intervals(),
    )
    phases = draw(st.lists(span, min_size=1, max_size=8, unique_by=lambda one: one.launched.start))
    number = st.dictionaries(st.sampled_from(["step", "decodes", "prefill"]), st.integers(0, 99))
    host = draw(st.lists(st.builds(HostSpan, stage=names, name=st.text(max_size=8), numbers=number, took=intervals())))
    ordered = sorted(phases, key=lambda one: one.launched.start)
    return Trace(
        draw(st.text()),
        tuple(ordered),
        host=tuple(host),
        dropped=draw(times),
        unfinished=draw(times),
        error=draw(times),
    )


@settings(max_examples=50)
@given(trace=traces())
def test_a_written_trace_is_read_back(tmp_path_factory: pytest.TempPathFactory, trace: Trace):
    path = tmp_path_factory.getbasetemp() / "round.json"
    write_trace(trace, path)
    assert read_trace(path) == trace


def spoil(file: dict[str, Any], *place: str | int, value: object) -> str:
    """The file with another value in one place."""
    inner = spoiled = json.loads(json.dumps(file))
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(spoiled)


def test_a_bad_file_is_refused_with_its_name_and_the_field(tmp_path: Path):
    path = tmp_path / "bad.json"
    good = written(made_trace(()), tmp_path)
    first = next(n for n, event in enumerate(good["traceEvents"]) if event.get("cat") == "run" and event["ph"] == "X")
    event = ("traceEvents", first)
    cases = {
        "": "the file is not JSON",
        "[]": "the file is wrong",
        '{"traceEvents": []}': "missing required field `otherData`",
        spoil(good, "otherData", "format", value="another"): "otherData.format is 'another'",
        spoil(good, "otherData", "dropped", value="some"): "otherData.dropped is wrong",
        spoil(good, *event, "ph", value=1): rf"traceEvents\[{first}\].ph is wrong",
        spoil(good, *event, "args", value=[]): rf"traceEvents\[{first}\].args is wrong",
        spoil(good, *event, "args", "ran", "end", value=-1): rf"traceEvents\[{first}\].args has an interval that ends",
        spoil(good, *event, "args", "launched", "start", value="now"): r"args.launched.start is wrong",
        spoil(good, *event, "args", "category", value="soup"): rf"traceEvents\[{first}\].args.category is wrong",
        spoil(good, "traceEvents", value=[]): "traceEvents holds no phases",
    }
    for content, message in cases.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message) as caught:
            read_trace(path)
        assert caught.value.field == str(path)


def test_a_file_that_is_not_there_or_cannot_be(tmp_path: Path):
    with pytest.raises(InputError, match=r"nothing\.json: cannot be read"):
        read_trace(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(made_trace(()), tmp_path / "no folder" / "trace.json")


def test_a_trace_that_cannot_be_written_whole_changes_nothing(tmp_path: Path):
    path, good = tmp_path / "out.json", made_trace((5000,))
    write_trace(good, path)
    before = path.read_bytes()
    bad = replace(good, host=(HostSpan("thinker", "\ud800", {}, Interval(0, 1)),))
    with pytest.raises(UnicodeEncodeError):
        write_trace(bad, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_goes_on_leading_to_its_file(tmp_path: Path):
    path, link = tmp_path / "out.json", tmp_path / "newest.json"
    link.symlink_to(path)
    write_trace(made_trace((5000,)), link)
    assert link.is_symlink()
    assert read_trace(path) == made_trace((5000,))


def test_events_of_others_are_passed_over(tmp_path: Path):
    trace = replace(made_trace((5000,)), dropped=3, unfinished=2)
    file = written(trace, tmp_path)
    file["traceEvents"].append({"ph": "C", "name": "memory", "pid": 1, "ts": 1.0, "args": {"bytes": 5}})
    file["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 9, "tid": 9, "ts": 1.0, "dur": 1.0})
    (tmp_path / "more.json").write_text(json.dumps(file))
    assert read_trace(tmp_path / "more.json") == trace
