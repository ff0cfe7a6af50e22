"""Each script of benchmarks/ measures a tiny model and writes its numbers."""

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni.frontend.base import Message, Prepared, TextPart
from omni.payload import Payload
from omni_ar.inputs import Prompt
from tests.benchmarks.benchmark_script import BENCHMARKS, run_script
from tests.support.painter import paint_plugins
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiers import SLOW, few

pytestmark = pytest.mark.thorough


def test_encoders_measures_both_towers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "encoders.json"
    run_script(monkeypatch, "encoders", "--device", "cpu", "--tiny", "--json", str(file))
    rows = json.loads(file.read_text())["numbers"]
    sizes = [(row["tower"], row["embeddings"]) for row in rows]
    assert sizes == [("vision_encoder", 16), ("vision_encoder", 64), ("audio_encoder", 13)]
    for row in rows:
        assert row["host ms"] > 0
        assert row["device ms"] > 0
        assert row["apart"] == 0


def test_encoder_rounding_finds_what_padding_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rounding.json"
    run_script(monkeypatch, "encoder_rounding", "--device", "cpu", "--tiny", "--json", str(file))
    for row in json.loads(file.read_text())["numbers"]:
        assert 0 < row["padded, from float64"] < 1.1 * row["from float64"]
        changed = {each["operation"]: each["changed"] for each in row["operations"]}
        assert changed["attention"] > 0


@pytest.mark.slow
def test_drafts_measures_each_drafter_against_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    run_script(monkeypatch, "drafts", "--device", "cpu", "--tiny", "--rows", "2", "--rates", "0.8", "--json", str(file))
    numbers = json.loads(file.read_text())["numbers"]
    plain, fabricated, always, ngram, repeats = (each for each in numbers if each["shape"] == "tiny-text")
    whats = [each["what"] for each in (plain, ngram, repeats)]
    assert whats == ["plain", "ngram, random text", "ngram, text that repeats"]
    assert plain["length"] == 1
    assert min(fabricated["length"], always["length"]) > 1.5
    assert repeats["accepted"] == repeats["drafted"] > 0
    for each in (fabricated, always):
        assert each["per_second"] > 0
        assert each["drafted"] > each["accepted"] > each["drafted"] / 2
    assert all(each["experts"] is None for each in (plain, fabricated, always, ngram, repeats))
    # Counted, not only what uniform choices would give: two of four experts a token, of two rows with up to four tokens each.
    counted = {each["what"]: each["experts"] for each in numbers if each["shape"] == "tiny-omni"}
    assert len(counted) == 5
    assert all(2 <= found <= 4 and found != uniform for found, uniform in counted.values())
    (alone, expected), (drafted, most) = counted["plain"], counted["fabricated, 0.8, always 3"]
    assert expected == 3 < drafted <= 4
    assert most > expected
    assert drafted > alone


@pytest.mark.slow
def test_drafts_measures_drafters_with_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "drafts.json"
    run_script(
        monkeypatch,
        "drafts",
        *("--device", "cpu", "--tiny", "--rows", "2", "--rates", "0", "--no-experts", "--no-ngram"),
        *("--models", "draft_model", "eagle3", "--json", str(file)),
    )
    numbers = json.loads(file.read_text())["numbers"]
    found = {(each["shape"], each["what"]): each for each in numbers}
    assert ("tiny-omni", "draft_model, random text") not in found
    repeats = found["tiny-text", "draft_model, always 3, text that repeats"]
    assert repeats["accepted"] == repeats["drafted"] > 0
    assert repeats["length"] > 3
    for shape in ("tiny-text", "tiny-omni"):
        head = found[shape, "eagle3, always 3, random text"]
        assert head["drafted"] > 100 > head["accepted"]


@pytest.mark.slow
def test_connectors_measures_the_hop_between_stages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, tokens = tmp_path / "hops.json", 12
    what = ("--connectors", "local", "--device", "cpu", "--shape", "tiny-qwen2.5-omni", "--requests", "1", "2")
    run_script(monkeypatch, "connectors", *what, "--tokens", str(tokens), "--json", str(file))
    numbers = json.loads(file.read_text())["numbers"]
    assert [one["requests"] for one in numbers] == [1, 2]
    for one in numbers:
        # The first two hidden states of a text are for the talker's prompt. They count where another request speaks meanwhile.
        alone = one["requests"] == 1
        assert 0 < one["hops"] <= one["requests"] * (tokens - 2 * alone)
        assert 0 < one["least_p50"] <= one["most_p50"] <= one["most_p99"]
    # One load serves all of them; each step is reported as it begins.
    steps = ["loading .*", "1 at once, warm-up", "1 at once, measured", "2 at once, warm-up", "2 at once, measured"]
    assert re.fullmatch("".join(rf"{step} \.\.\. [\d.]+ s\n" for step in steps), capfd.readouterr().err)


def test_ranks_gives_each_row_a_random_prompt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("ranks")
    given = Prompt(columns=np.zeros((1, 5), np.int64), positions=np.zeros((3, 5), np.int64), next_position=5)
    frontend = SimpleNamespace(prepare=lambda chat: Prepared({"thinker": [Payload(given)]}, prompt_tokens=5))
    real, vocab = frontend.prepare, 100_000
    omni = SimpleNamespace(_client=SimpleNamespace(frontend=frontend))
    with script.random_prompts(omni, "thinker", vocab, 70):
        chats = [SimpleNamespace(messages=[Message("user", (TextPart(text),))]) for text in ("0", "1", "0")]
        prompts = [frontend.prepare(chat).inputs["thinker"][0].meta for chat in chats]
    assert frontend.prepare is real
    for prompt in prompts:
        prompt.check(1, 3, vocab)
        assert prompt.length == prompt.next_position == 70
    first, second, again = (set(prompt.columns[0].tolist()) for prompt in prompts)
    assert first == again
    assert len(first & second) <= 2, "of 100,000 ids two prompts share hardly any"


def test_layer_ranges_add_little_host_work_to_sampling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    run_script(monkeypatch, "host_ranks", "--rows", "8", "--ranges", "1", "3", "--steps", "32", "--json", str(file))
    numbers = json.loads(file.read_text())["numbers"]
    alone, cut, recorded_alone, recorded = (Counter(one["driver"]) for one in numbers)
    assert alone == {"kernels": 0, "graphs": 1, "events": 1}
    # Two other ranks are sent the tokens from the main stream, which waits for neither transfer.
    assert cut - alone == {"transfers": 2}
    # A graph for each phase, of which each has two events; the token point has one.
    assert recorded_alone == {"kernels": 0, "graphs": 4, "events": 10}
    assert recorded - recorded_alone == {"graphs": 1, "events": 4, "transfers": 2}


def test_drafts_add_no_host_work_to_sampling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, arguments = tmp_path / "drafts.json", ("--rows", "8", "--drafts", "0", "3", "--ranges", "1", "2")
    run_script(monkeypatch, "host_ranks", *arguments, "--steps", "32", "--json", str(file))
    plain, drafted, cut, cut_drafted = json.loads(file.read_text())["numbers"][:4]
    for calls in ("python", "c", "driver"):
        assert drafted[calls] == plain[calls]
    # The drafts of the rows' next steps, the message with them, and their end: the drafter's graph has both.
    assert Counter(cut_drafted["driver"]) - Counter(cut["driver"]) == {"graphs": 1, "events": 1}


@pytest.mark.slow
def test_connectors_measures_payloads_between_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "payloads.json"
    what = ("--connectors", "shm", "--device", "cpu", "--sizes", "4K", "1M", "--count", "20", "--pool", "4M")
    run_script(monkeypatch, "connectors", *what, "--json", str(file))
    numbers = json.loads(file.read_text())["numbers"]
    assert [one["bytes"] for one in numbers] == [2**12, 2**20]
    for one in numbers:
        assert 0 < one["one_way_p50_us"] <= one["one_way_p99_us"]


@pytest.mark.slow
def test_first_audio_compares_rules_by_a_clock_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    what = ("--at-once", "2", "--late", "1", "--late-words", "30", "--every", "0.05", "--tokens", "6", "--frames", "40")
    run_script(monkeypatch, "first_audio", *what, "--steps", "--json", str(file))
    ten, four, slack = json.loads(file.read_text())["numbers"]
    assert [ten["rule"], four["rule"], slack["rule"]] == ["fixed, 10 frames first", "fixed", "slack"]
    for one in (ten, four, slack):
        assert (one["early"]["streams"], one["late"]["streams"]) == (2, 1)
        assert one["early"]["chunks"][0] == pytest.approx(0.3 if one is not ten else 0.78, abs=0.01)
    assert slack["early"]["first_audio_max"] < ten["early"]["first_audio_max"]
    assert slack["early"]["chunks"][1] < ten["early"]["chunks"][1] == 2.0
    assert slack["underruns"] == slack["early"]["gaps"] == slack["late"]["gaps"] == 0


FRAME_SECONDS = {"tiny-omni": 0.08, "tiny-qwen2.5-omni": 2 * 20 / 24000}
"""Of one frame: 12.5 a second, and of the tiny checkpoint's two mel frames of 20 samples."""


@pytest.mark.parametrize("shape", few(1, FRAME_SECONDS, SLOW))
def test_talk_reports_every_concurrency(shape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, frames = tmp_path / "talk.json", 8
    sizes = ("--tokens", "4", "--frames", str(frames), "--concurrency", "1", "2", "--rounds", "1")
    run_script(monkeypatch, "talk", "--device", "cpu", "--shape", shape, *sizes, "--json", str(file))
    rounds = json.loads(file.read_text())["numbers"]
    assert [one["requests"] for one in rounds] == [1, 2]
    for one in rounds:
        assert 0 < one["ttft"] < one["first_audio"] <= one["total"]
        assert set(one["rates"]) >= {"thinker", "talker"}
        # Streaming leaves the last piece of a frame to the one that follows.
        spoken = one["requests"] * frames * FRAME_SECONDS[shape]
        assert one["speech"] * one["total"] == pytest.approx(spoken, rel=0.1)


@pytest.mark.parametrize("tolerance", few(1, [-1.0, 1.0], SLOW))
def test_decode_reports_every_case(
    tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("bench.routing"), "TOLERANCE", tolerance)
    file = tmp_path / "decode.json"
    run_script(monkeypatch, "decode", "--device", "cpu", "--tiny", "--rows", "2", "--json", str(file))
    report = json.loads(file.read_text())
    cases = {(case["shape"], case["rows"]): case for case in report["numbers"]["decode"]}
    assert set(cases) == {("tiny-text", 2), ("tiny-omni", 2)}
    for case in cases.values():
        assert case["times"]["steps"] >= 16
    assert cases["tiny-text", 2]["experts"] is None
    hidden = report["numbers"]["hidden"]
    for counted, uniform in (cases["tiny-omni", 2]["experts"], hidden["experts"]):
        # Two tokens that choose two of four experts each use two to four.
        assert 2 <= counted <= 4
        assert uniform == 3
    assert hidden["rows"] == 2
    assert hidden["steps"] == 16
    assert report["facts"]["commit"]
    void = [line.split(",")[0].split("  ")[0] for line in capsys.readouterr().out.splitlines() if "VOID" in line]
    assert void == (["tiny-omni decode", "hidden states gathered / none"] if tolerance < 0 else [])


Painted = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Painted:
    """Runs a script on the painter family; gives its numbers."""
    (tmp_path / "config.json").write_text('{"model_type": "paint"}')
    monkeypatch.setattr("omni.plugin.manager.load_plugins", paint_plugins)

    def run(name: str, *arguments: str) -> list[dict[str, Any]]:
        file = tmp_path / "numbers.json"
        run_script(monkeypatch, name, str(tmp_path), *arguments, "--json", str(file))
        numbers: list[dict[str, Any]] = json.loads(file.read_text())["numbers"]
        return numbers

    return run


def test_windows_reports_the_cost_of_streaming(painted: Painted) -> None:
    rows = {(row["before"], row["after"]): row for row in painted("windows", "--frames", "40")}
    assert rows[0, 0]["work"] == 1
    assert rows[2, 1]["work"] == 2.5
    for measure in ("latents", "waveform"):
        alone, some, enough = (rows[pair][measure] for pair in ((0, 0), (1, 1), (4, 4)))
        assert alone > 2 * some > 0
        # The model has three steps, and each reads one block to either side.
        assert enough < 1e-6


@pytest.mark.parametrize("how", [(), ("--eager", "--after", "0")])
def test_denoise_measures_streams(how: tuple[str, ...], painted: Painted) -> None:
    rows = painted("denoise", "--device", "cpu", "--rows", "1", "3", "--frames", "20", *how)
    assert [row["streams"] for row in rows] == [1, 3]
    assert all(row[name] > 0 for row in rows for name in ("first_ms", "step_ms", "rtf", "sound_per_second"))


def test_precision_reports_its_cost(painted: Painted) -> None:
    rows = painted("precision", "--device", "cpu", "--frames", "20")
    assert [row["precision"] for row in rows] == ["float32", "TF32", "bfloat16"]
    assert rows[0]["latents"] == rows[0]["waveform"] == rows[0]["peak"] == 0
    assert all(0 <= row[name] < 1 for row in rows for name in ("latents", "waveform", "peak"))


FAMILIES = {"hidden": {"writer"}, "omni": {"thinker", "talker"}}


@pytest.mark.parametrize("family", few(1, FAMILIES, SLOW))
def test_handoff_compares_both_variants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    steps, lost = importlib.import_module("bench.steps"), itertools.count(1)
    steady = steps.steady_steps
    monkeypatch.setattr(steps, "steady_steps", lambda *given: steady(*given)[: -next(lost)])
    file = tmp_path / "handoff.json"
    folder = tmp_path / "made" / "by it"
    pictures = ("--pictures", str(folder))
    run_script(
        monkeypatch, "handoff", "--device", "cpu", "--tiny", "--families", family, "--json", str(file), *pictures
    )
    rows = {(row["stage"], row["inline"]): row for row in json.loads(file.read_text())["numbers"]}
    assert set(rows) == {(stage, inline) for stage in FAMILIES[family] for inline in (False, True)}
    for stage in FAMILIES[family]:
        inline, handoffs = rows[stage, True], rows[stage, False]
        assert inline["times"]["steps"] == handoffs["times"]["steps"]  # though one had fewer
        assert inline["experts"] == handoffs["experts"]
        counted, uniform = inline["experts"]
        # Two tokens that choose two of four experts each use two to four.
        assert 2 <= counted <= 4
        assert uniform == 3
    assert (folder / f"handoff-{family}.png").stat().st_size
    names = {name for variant in ("inline", "handoffs") for name in _phases(folder, family, variant)}
    assert "copy_payload" in names
    assert "copy_payload" not in _phases(folder, family, "handoffs")


@pytest.mark.slow
def test_handoff_prints_its_numbers_before_it_draws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("nothing to draw with")

    monkeypatch.setattr("omni.timeline.write_trace", fail)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(importlib.import_module("bench.routing"), "TOLERANCE", -1.0)
    file = tmp_path / "handoff.json"
    arguments = ("--device", "cpu", "--tiny", "--families", "hidden", "--json", str(file), "--pictures", str(tmp_path))
    with pytest.raises(RuntimeError, match="nothing to draw with"):
        run_script(monkeypatch, "handoff", *arguments)
    lines = capsys.readouterr().out.splitlines()
    for row in json.loads(file.read_text())["numbers"]:
        wall = f"{row['times']['wall'] / 1000:.3f}"
        line = next(line for line in lines if wall in line.split() and line.startswith("hidden, writer x 2"))
        assert "VOID" in line


def _phases(folder: Path, family: str, variant: str) -> set[str]:
    trace = json.loads((folder / f"handoff-{family}-{variant}.json").read_text())
    return {event["name"] for event in trace["traceEvents"]}


def _outcomes(monkeypatch: pytest.MonkeyPatch, folder: Path, *modes: str) -> dict[str, set[str]]:
    file = folder / "colocate.json"
    run_script(monkeypatch, "colocate", "--device", "cpu", "--tiny", "--modes", *modes, "--json", str(file))
    return {one["name"]: set(one["times"]) for one in json.loads(file.read_text())["numbers"]}


def test_colocate_in_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"thinker", "talker"}
    found = _outcomes(monkeypatch, tmp_path, "alone", "loop")
    assert found == {"alone": both, "one loop, one priority": both, "one loop, talker first": both}
    alone = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("alone  "))
    assert alone.split()[-1] == "2.00"  # each is as fast as itself


@pytest.mark.parametrize(
    ("codes", "patience", "problem"), [((None, 1), 60.0, "talker 1"), ((None, None), 0.0, "more than 0.0 s")]
)
def test_a_process_that_gives_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int | None, ...], patience: float, problem: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    processes = importlib.import_module("bench.processes")
    monkeypatch.setattr(processes, "_LOOK", 0.01)
    children = [
        SimpleNamespace(name=name, exitcode=code) for name, code in zip(("thinker", "talker"), codes, strict=True)
    ]
    results: Queue[dict[str, object]] = Queue()
    results.put({"thinker": None})
    with pytest.raises(RuntimeError, match=problem):
        processes.answers_of(children, results, patience)


@pytest.mark.slow
def test_colocate_as_two_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _outcomes(monkeypatch, tmp_path, "processes") == {"two processes": {"thinker", "talker"}}


@pytest.mark.parametrize("served", few(1, [False, True], SLOW))
def test_neighbour_measures_the_engine_and_the_server(
    served: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a fast machine or a slow one: the client gets as much sound over HTTP."""
    file = tmp_path / "served.json"
    what = (
        "--shape",
        "tiny-omni",
        "--device",
        "cpu",
        "--concurrency",
        "2",
        "--tokens",
        "4",
        "--frames",
        "6",
        "--rounds",
        "1",
    )
    more = (*["--serve"] * served, "--timeline", str(tmp_path / "trace.json"), "--json", str(file))
    run_script(monkeypatch, "neighbour", *what, "--neighbours", "quiet", *more)
    numbers = json.loads(file.read_text())["numbers"]
    assert [one["neighbour"] for one in numbers] == [
        "quiet",
        *["media", "http", "http mp3", "http data", "http media"] * served,
    ]
    for one in numbers:
        assert one["requests"] == 2
        assert one["rtf"] > 0
        assert one["first_audio_ms"] > 0
        # A picture and a sound of each request.
        assert one["fetched"] == (4 if one["neighbour"] == "http media" else 0)
        # Of the engine itself, whichever process it is in.
        assert one["steps"]
        for steps in one["steps"].values():
            assert 0 < steps["p50"] <= steps["p99"]


@pytest.mark.slow
def test_neighbour_gives_media_with_and_without_http_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    neighbour = importlib.import_module("neighbour")
    media = neighbour.RequestMedia({"1.jpg": b"a", "1.wav": b"b"})
    message = "Tell me about the number 2001."
    content = media.content("media", message)
    assert [part["type"] for part in content] == ["image_url", "audio_url", "text"]
    assert content == media.content("http data", message)
    assert media.content("quiet", message) == media.content("http", message) == message


def test_sound_files_are_the_same_from_threads_and_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "files.json"
    what = ("--formats", "mp3", "flac", "--streams", "2", "--seconds", "2", "--processes", "0", "1")
    run_script(monkeypatch, "sound_files", *what, "--chunk", "0.5", "--json", str(file))
    numbers = json.loads(file.read_text())["numbers"]
    assert [(one["format"], one["processes"]) for one in numbers] == [("mp3", 0), ("mp3", 1), ("flac", 0), ("flac", 1)]
    for threads, processes in (numbers[:2], numbers[2:]):
        assert threads["bytes"] == processes["bytes"] > 1000
        assert min(threads["cpu_ms"], processes["cpu_ms"]) > 0
    # LAME's time is ten times that of the way to it.
    assert numbers[1]["cpu_ms"] < numbers[0]["cpu_ms"]


@pytest.mark.slow
def test_the_kernels_of_a_start_are_compiled_and_timed(tmp_path: Path) -> None:
    """In a process of its own: here Triton's interpreter runs the kernels."""
    file = tmp_path / "times.json"
    what = ["--shape", "tiny-text", "--rows", "2", "--processes", "2", "--json", str(file)]
    compiles = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = BENCHMARKS / "compile_time.py"
    subprocess.run([sys.executable, script, *what], env=compiles, check=True, timeout=PATIENCE_SECONDS)
    times = json.loads(file.read_text())["numbers"]
    assert {"sample_row", "_rms_norm", "_decode"} <= {one["kernel"].rpartition(":")[2] for one in times}
    assert all(0 < one["longest"] <= one["seconds"] for one in times)
    assert [one["longest"] for one in times] == sorted((one["longest"] for one in times), reverse=True)


@pytest.mark.slow
def test_start_measures_the_parts_of_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    what = ("--shape", "tiny-omni", "--device", "cpu", "--set", "engine.compile_processes=0")
    run_script(monkeypatch, "start", *what, "--starts", "1", "--json", str(file))
    [row] = json.loads(file.read_text())["numbers"]
    parts = sum(row[name] for name in ("imports", "other", "load", "compile", "measure", "capture"))
    assert row["total"] == pytest.approx(parts)
    assert min(row["imports"], row["other"], row["load"]) > 0
    assert (row["caches"], row["known"], row["compiled"], row["late"]) == ("empty", 0, 0, 0)


def test_frames_measures_the_talker_s_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "frames.json"
    run_script(monkeypatch, "frames", "--device", "cpu", "--tiny", "--rows", "2", "--frames", "64", "--json", str(file))
    (measured,) = json.loads(file.read_text())["numbers"]
    assert measured["rows"] == 2
    # Steps beside the thinker's, which has 8 tokens, and at the ends are left out.
    assert 40 <= measured["times"]["steps"] <= 56
    assert measured["times"]["step"][0] > 0
