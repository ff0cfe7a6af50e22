"""Scripts that time a model, or a part of one, with entries of the tables replaced together."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from omni_ar.kernels import tuning
from tests.benchmarks.benchmark_script import run_script
from tests.benchmarks.linear_settings import DOWN
from tests.omni.engine.launched import GPU

pytest.importorskip("triton")

FIRST, SECOND = "linear-N1000-D24-bfloat16", "gated-N1000-D24-bfloat16"
ONE, TWO = (
    {"kernel": "tiled", "tile_n": n, "tile_d": 256, "slices": 4, "rows_left": True, "num_warps": 4, "num_stages": 4}
    for n in (8, 16)
)
CPU = torch.device("cpu")


class Watched:
    """A target that notes the entries of the tables which its calls find, for 8 and 16 rows."""

    def __init__(self, device: str) -> None:
        assert device == "cpu"
        self.found: list[list[tuning.Config]] = []

    def call(self, rows: int) -> Callable[[], object]:
        keys = [(key, size) for key in (FIRST, SECOND, DOWN) for size in (rows, 2 * rows)]
        return lambda: self.found.append([tuning.tuned("linear", CPU, key, size, {}) for key, size in keys])


@pytest.fixture
def watched(tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    target, targets = Watched("cpu"), tune("layer_targets")
    monkeypatch.setattr(targets, "TARGETS", {"watched": targets.LayerTarget(lambda device: target, (8,))})
    yield target
    assert tuning.tuned("linear", CPU, FIRST, 8, {}) == {}


def replace(key: str, *settings: tuning.Config) -> tuple[str, ...]:
    return "--replace", "linear", key, *map(json.dumps, settings)


def test_entries_are_replaced_together_and_in_all_combinations(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = (*replace(FIRST, ONE, {}), *replace(f"{SECOND}@16", TWO), *replace(DOWN, {}))
    run_script(monkeypatch, "tune/layer_times", "watched", "8", "--device", "cpu", "--turns", "1", *tried)
    tables, one, none, again = watched.found
    down = [tuning.shipped("linear", CPU, DOWN)[rows] for rows in (8, 16)]
    assert tables == again == [{}, {}, {}, {}, *down]
    # Entries of smaller numbers of rows are those of the next larger one, and more rows keep what they have.
    assert one == [ONE, {}, TWO, TWO, {}, down[1]]
    assert none == [{}, {}, TWO, TWO, {}, down[1]]
    first, second, third, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" us  the tables")
    assert last.endswith(" us  the tables")
    for line, settings in ((second, ONE), (third, {})):
        assert f"linear {FIRST}@8 {json.dumps(settings)}; linear {SECOND}@16 {json.dumps(TWO)}; " in line


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("linear", FIRST), "is not OPERATION KEY SETTINGS"),
        (("norm", FIRST, "{}"), "is not OPERATION KEY SETTINGS"),
        (("linear", f"{FIRST}@", "{}", "{"), "Expecting property name"),
        (("linear", f"{FIRST}@some", "{}"), "is not OPERATION KEY SETTINGS"),
        (("linear", "linear-N1000-D24", "{}"), "no key of a linear map"),
        (("linear", DOWN, json.dumps(ONE | {"tiles": 2})), "unknown field `tiles`"),
        (("moe", "any", "{}"), "missing required field"),
    ],
)
def test_wrong_entries_are_refused(
    given: tuple[str, ...],
    problem: str,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run_script(monkeypatch, "tune/layer_times", "watched", "8", "--device", "cpu", "--replace", *given)
    assert problem in capsys.readouterr().err
    assert not watched.found


def test_a_target_runs_with_replaced_entries(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets, stack = tune("layer_targets"), tune("layers").Stack
    small: Any = targets.LayerTarget(lambda device: stack(2, 64, 4, 2, 96, head=16, device=device), (2,))
    monkeypatch.setattr(targets, "TARGETS", {"small": small})
    what = ("small", "2", "--device", "cpu", "--turns", "2", *replace(FIRST, ONE))
    run_script(monkeypatch, "tune/layer_times", *what)
    times = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(times) == 3
    assert min(times) > 0


def test_settings_that_do_not_fit_are_left_out(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, left = tune("layer_times"), []

    @contextmanager
    def captured(calls: Sequence[Callable[[], float]], **_: object) -> Iterator[float]:
        yield calls[0]()
        left.append(calls)

    def call() -> float:
        found = tuning.tuned("linear", GPU, FIRST, 8, {})
        if found == TWO:
            raise RuntimeError("no memory")
        return 2.0 if found else 1.0

    monkeypatch.setattr(script, "captured", captured)
    monkeypatch.setattr(script, "seconds_in_turns", lambda several, turns: several)
    tried: list[Any] = [{}, {("linear", FIRST, 8): TWO}, {("linear", FIRST, 8): ONE}, {}]
    assert script.times_of(call, tried, GPU, 3) == [1.0, math.inf, 2.0, 1.0]
    assert f"refused: linear {FIRST}@8 {json.dumps(TWO)}: no memory" in capsys.readouterr().out
    assert len(left) == 3


@pytest.mark.slow
def test_a_step_is_timed_with_replaced_entries(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = ("tiny-text", "2", "--device", "cpu", "--steps", "3", "--prompt", "8")
    run_script(monkeypatch, "tune/in_steps", *what, *replace(FIRST, ONE), *replace(SECOND, ONE, TWO))
    lines = [line for line in capsys.readouterr().out.splitlines() if " us  " in line]
    assert ["the tables" in line for line in lines] == [True, False, False, True]
    assert all(float(line.split()[0]) > 0 for line in lines)
