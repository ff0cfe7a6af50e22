"""benchmarks/tune/in_layers.py finds the fastest settings of linear maps by the time of a target, which is planted here."""

import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from omni.device.kernel_choice import kernels_of
from omni.kernels import Variant, VariantRecorder
from omni_ar.kernels import tuning
from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings
from omni_ar.kernels.tuning import table
from tests.benchmarks.benchmark_script import BENCHMARKS
from tests.omni.engine.launched import GPU, pretend_gpu

pytest.importorskip("triton")

Setting = StreamedSettings | TiledSettings | None
ONE, TWO, THREE = (StreamedSettings(block_n=block_n, block_d=64, num_warps=1) for block_n in (1, 2, 4))
SPLIT = TiledSettings(tile_n=16, tile_d=64, slices=1, rows_left=False, num_warps=4, num_stages=2, splits=2)
US = 1e-6


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Modules of benchmarks/tune, by name, for an H200 that is not there. No table stays changed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "tune"))
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(table, "_folder", lambda device: "nvidia_h200")
    monkeypatch.setattr(table, "_replaced", {})
    tuning.replace("none", "none", None)
    yield importlib.import_module
    monkeypatch.undo()
    tuning.replace("none", "none", None)


class Planted:
    """A search and its timer. cost: of a choice, in microseconds."""

    def __init__(
        self, settings: Mapping[str, Sequence[Setting]], cost: Callable[[Mapping[str, Setting]], float]
    ) -> None:
        self.settings, self.cost = settings, cost
        self.tried: list[Mapping[str, Setting]] = []

    def keys(self, present: Mapping[str, Setting]) -> Sequence[str]:
        return list(self.settings)

    def moves(self, key: str, present: Mapping[str, Setting], times: object) -> Iterable[Mapping[str, Setting]]:
        return [{key: setting} for setting in self.settings[key] if setting != present[key]]

    def seconds(self, choice: Mapping[str, Setting]) -> float:
        self.tried.append(choice)
        return self.cost(choice) * US

    def in_turns(self, one: Mapping[str, Setting], other: Mapping[str, Setting]) -> tuple[float, float]:
        return self.cost(one) * US, self.cost(other) * US


def added(costs: Mapping[str, Mapping[Any, float]]) -> Callable[[Mapping[str, Setting]], float]:
    return lambda choice: 1000 + sum(costs[key][setting] for key, setting in choice.items())


def test_the_best_of_planted_times_is_found(tune: Callable[[str], ModuleType]) -> None:
    costs = {"a": {None: 90.0, ONE: 50.0, TWO: float("inf"), THREE: 70.0}, "b": {None: 10.0, ONE: 30.0}}
    planted = Planted({"a": (ONE, TWO, THREE), "b": (ONE, None)}, added(costs))
    found = tune("descent").descend({"a": None, "b": ONE}, planted, planted, 60.0)
    assert found == {"a": ONE, "b": None}


def test_settings_that_help_only_together_take_two_sweeps(tune: Callable[[str], ModuleType]) -> None:
    def cost(choice: Mapping[str, Setting]) -> float:
        return 1000 - 100 * (choice["b"] == ONE) - 100 * (choice["a"] == choice["b"] == ONE)

    planted = Planted({"a": (ONE,), "b": (ONE,)}, cost)
    assert tune("descent").descend({"a": None, "b": None}, planted, planted, 60.0) == {"a": ONE, "b": ONE}


def test_a_gain_within_the_noise_changes_nothing(tune: Callable[[str], ModuleType]) -> None:
    start = {"a": None}
    for saved, kept in ((2.9, None), (3.1, ONE)):
        planted = Planted({"a": (ONE,)}, added({"a": {None: 0.0, ONE: -saved}}))
        assert tune("descent").descend(start, planted, planted, 60.0) == {"a": kept}


def test_a_gain_that_turns_do_not_confirm_is_not_kept(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted({"a": (ONE,)}, added({"a": {None: 0.0, ONE: -100.0}}))
    monkeypatch.setattr(planted, "in_turns", lambda one, other: (1000 * US, 999 * US))
    assert tune("descent").descend({"a": None}, planted, planted, 60.0) == {"a": None}


def test_the_time_limit_keeps_the_best_so_far(tune: Callable[[str], ModuleType]) -> None:
    costs = {"a": {None: 90.0, ONE: 50.0, TWO: 40.0, THREE: 0.0}, "b": {None: 50.0, ONE: 0.0}}
    planted, ticks = Planted({"a": (ONE, TWO, THREE), "b": (ONE,)}, added(costs)), itertools.count()
    found = tune("descent").descend({"a": None, "b": None}, planted, planted, 3.0, clock=lambda: next(ticks))
    assert found == {"a": TWO, "b": None}
    assert len(planted.tried) == 3


def test_what_another_target_loses_by_is_undone(tune: Callable[[str], ModuleType]) -> None:
    without_losses = tune("in_layers").without_losses
    start, best = dict.fromkeys("abc"), dict.fromkeys("abc", ONE)
    own = Planted({}, added({key: {None: 0.0, ONE: -20.0} for key in "abc"}))
    for losses, undone in (({"a": 30.0, "b": 5.0}, "a"), ({"a": 2.0, "b": 2.0}, ""), ({"a": 15.0, "b": 15.0}, "")):
        other = Planted({}, added({key: {None: 0.0, ONE: losses.get(key, 0.0)} for key in "abc"}))
        found = without_losses(start, best, losses, own.in_turns, other.in_turns, "other")
        assert found == {**best, **dict.fromkeys(undone)}


def test_larger_numbers_of_rows_keep_their_settings(tune: Callable[[str], ModuleType]) -> None:
    placed = tune("changed_tables").placed
    one, two = ({"kernel": "streamed", "block_n": n, "block_d": 64, "num_warps": 1} for n in (1, 2))
    assert placed({1: one, 2: one}, 4, TWO) == {1: one, 2: one, 4: two, 64: one}
    assert placed({1: one, 4: one}, 4, TWO) == {1: one, 4: two, 64: one}
    assert placed({1: one, 32: one}, 4, TWO) == {1: one, 4: two, 32: one}
    assert placed({}, 8, TWO) == {8: two, 64: {}}
    assert placed({8: one, 64: one}, 64, None) == {8: one, 64: {}}
    assert placed({2: one}, 4, ONE) == {2: one}  # as it was


def test_changes_are_merged_into_the_file(
    tune: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, out = tune("changed_tables"), tmp_path / "in_steps.json"
    out.write_text(json.dumps({"linear": {"a": {"8": {}, "16": {}}}, "moe": {"m": {"1": {"n": 1}}}}))
    key, largest = "norm_linear-N7-D64-bfloat16", {"kernel": "streamed", "block_n": 4, "block_d": 64, "num_warps": 1}
    monkeypatch.setattr(tables.tuning, "shipped", lambda *given: {2: largest} if given[2] == key else {})
    changed = tables.ChangedTables(GPU, tables.read_changes(out))
    changed.keep({key: TWO, "a": ONE}, 16)
    tables.save(out, changed.changed)
    whole = json.loads(out.read_text())
    one, two = ({"kernel": "streamed", "block_n": n, "block_d": 64, "num_warps": 1} for n in (1, 2))
    assert whole["moe"] == {"m": {"1": {"n": 1}}}
    # Beyond the largest size that is shipped, rows go on to take the settings of that.
    assert whole["linear"][key] == {"16": two, "64": largest}
    assert whole["linear"]["a"] == {"8": {}, "16": one, "64": {}}
    assert tables.ChangedTables(GPU, tables.read_changes(out)).setting("a", 12) == ONE


def short(names: Iterable[str]) -> set[str]:
    return {name.removesuffix("-bfloat16") for name in names}


LAYERS = {"norm_linear-N4096-D1024", "linear-N1024-D2048", "linear-N1024-D3072"}
HEAD = "norm_linear-N2048-D1024"
BACKBONE = {"linear-N2048-D2048", "linear-N2048-D8192"}
LOOKED_UP = [
    ("code-predictor", 1, {*LAYERS, "norm_gated-N6144-D1024", HEAD}),
    # A norm that adds up parts has no kernel with the product behind it, and does not ask for one.
    ("code-predictor", 8, {*LAYERS, "linear-N4096-D1024", "gated-N6144-D1024", HEAD, "linear-N2048-D1024"}),
    ("qwen3-0.6b", 8, {*LAYERS, "linear-N4096-D1024", "gated-N6144-D1024"}),
    (
        "csm-depth",
        1,
        {"norm_linear-N1536-D1024", "linear-N1024-D1024", "linear-N1024-D8192", "norm_linear-N2051-D1024"},
    ),
    ("csm-backbone", 16, {*BACKBONE, "norm_linear-N3072-D2048", "linear-N3072-D2048"}),
    ("qwen3-omni-talker", 16, {"linear-N2560-D1024", "linear-N1024-D2048"}),
    ("qwen3-omni-thinker", 16, {"linear-N5120-D2048", "linear-N2048-D4096"}),
    ("qwen2.5-7b-talker", 1, {"norm_linear-N2560-D896", "linear-N896-D1536", "linear-N896-D18944"}),
    ("qwen2.5-7b-thinker", 1, {"norm_linear-N4608-D3584", "linear-N3584-D3584", "linear-N3584-D18944"}),
    ("qwen3-8b", 8, {"linear-N4096-D4096", "linear-N4096-D12288"}),
]


@pytest.mark.parametrize(("name", "rows", "expected"), LOOKED_UP)
@torch.inference_mode()
def test_targets_look_up_their_shapes(
    name: str, rows: int, expected: set[str], tune: Callable[[str], ModuleType]
) -> None:
    targets = tune("layer_targets")
    call = targets.TARGETS[name].make("meta").call(rows)
    with kernels_of(GPU), VariantRecorder().recording():
        found = targets.lookups(call, rows)
    assert expected <= short(found.bytes), short(found.bytes)
    if name == "code-predictor":
        assert short(found.bytes) == expected
        (first, _), *_ = found.before["linear-N1024-D3072-bfloat16"].most_common()
        assert first == ("norm_gated" if rows == 1 else "gated") + "-N6144-D1024-bfloat16"


Cost = Callable[[Sequence[tuple[str, Setting]]], float]


class PlantedTarget:
    """Two layers of Qwen3-0.6B, whose launches do not run. cost: of what a call looks up, in microseconds."""

    def __init__(self, tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, cost: Cost) -> None:
        self.script, targets = tune("in_layers"), tune("layer_targets")
        stack = tune("layers").Stack
        monkeypatch.setattr(
            self.script,
            "TARGETS",
            {"two": targets.LayerTarget(lambda device: stack(2, 1024, 16, 8, 3072, device=device), ())},
        )

        @contextmanager
        def captured(calls: Sequence[Callable[[], object]], **_: object) -> Iterator[float]:
            asked: list[tuple[str, Setting]] = []
            operation, settings = targets.operation, targets.settings

            def record(kind: str, x_TD: Any, weight_ND: Any) -> Setting:
                found: Setting = settings(kind, x_TD, weight_ND)
                asked.append((targets.key(kind, weight_ND), found))
                return found

            with monkeypatch.context() as patch:
                patch.setattr(operation, "settings", record)
                calls[0]()
            yield cost(asked) * US

        monkeypatch.setattr(self.script, "captured", captured)
        monkeypatch.setattr(self.script, "event_seconds", lambda seconds, repeats: seconds)
        monkeypatch.setattr(self.script, "seconds_in_turns", lambda several, repeats: list(several))
        self.wrong_settings: set[Setting] = set()
        monkeypatch.setattr(self.script, "LinearCase", lambda *shape: self)
        self.compiled: list[Variant] = []

    def wrong(self, setting: Setting) -> float:
        return float(setting in self.wrong_settings)

    def compile(self, variants: Iterable[Variant]) -> Callable[[], object]:
        self.compiled += variants
        return lambda: None

    def tune(self, rows: int, most: int) -> dict[str, dict[int, Any]]:
        tables = self.script.ChangedTables(GPU, {})
        tuner = self.script.LayerTuner("meta", tables, self.compile, most, 600.0)
        with torch.inference_mode(), kernels_of(GPU), VariantRecorder().recording():
            tuner.tune(tuner.prepare("two", rows))
        changed: dict[str, dict[int, Any]] = tables.changed
        return changed


QKV, OUT, GATED, DOWN = (
    f"{shape}-bfloat16"
    for shape in ("linear-N4096-D1024", "linear-N1024-D2048", "gated-N6144-D1024", "linear-N1024-D3072")
)


def test_a_norm_joins_its_product_if_no_parts_are_left(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels are the fastest here, and the split product before them is what keeps layers from asking for them."""

    def cost(asked: Sequence[tuple[str, Setting]]) -> float:
        fused = sum(key.startswith("norm_gated") and setting is not None for key, setting in asked)
        split = sum(key == OUT and isinstance(setting, TiledSettings) and setting.splits > 1 for key, setting in asked)
        return 1000 - 100 * fused - 10 * split

    planted = PlantedTarget(tune, monkeypatch, cost)
    changed = planted.tune(8, 12)
    assert set(changed) == {f"norm_{GATED}", OUT}
    assert changed[f"norm_{GATED}"][8]
    assert changed[OUT][8].get("splits", 1) == 1
    # What is compiled ahead: both kinds of kernels, and the norm for each number of parts.
    assert {"some_rows", "_few_rows"} <= {variant.kernel.rpartition(":")[2] for variant in planted.compiled}
    parts = {dict(variant.arguments).get("PARTS") for variant in planted.compiled}
    assert len(parts - {None}) >= 4, parts


def test_what_changes_is_the_setting_for_those_rows(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(asked: Sequence[tuple[str, Setting]]) -> float:
        return 1000 - sum(10 for key, setting in asked if key == DOWN and setting is None)

    assert PlantedTarget(tune, monkeypatch, cost).tune(8, 4) == {DOWN: {8: {}}}


def test_a_setting_with_wrong_results_ends_the_search(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PlantedTarget(tune, monkeypatch, lambda asked: 1000)
    known = tune("changed_tables").converted(tuning.shipped("linear", GPU, OUT)[32])
    planted.wrong_settings.add(known)
    with pytest.raises(SystemExit, match=r"^wrong by 1: \('linear-N1024-D2048-bfloat16', 8, "):
        planted.tune(8, 4)


def test_candidates_hold_every_setting_of_the_tables(tune: Callable[[str], ModuleType]) -> None:
    script = tune("in_layers")
    for key in (QKV, OUT, GATED, f"norm_{GATED}", HEAD + "-bfloat16"):
        known = tuning.shipped("linear", GPU, key).values()
        for rows, most in ((1, 24), (16, 24), (64, 1)):
            found = script.candidates_of(key, rows, known, most)
            assert len(found) == len(set(found)) <= max(most, len(known))
            assert {script.converted(config) for config in known} - {None} <= set(found)
