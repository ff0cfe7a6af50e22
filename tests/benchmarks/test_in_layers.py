"""benchmarks/tune/in_layers.py finds the fastest settings of linear maps by the time of a target, which is planted here."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from omni.device.kernel_choice import kernels_of
from omni.kernels import Variant, VariantRecorder
from omni_ar.kernels import tuning
from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings
from tests.benchmarks.linear_settings import DOWN, GATED, ONE, OUT, QKV, SPLIT, THREE, TWO, US, Setting
from tests.omni.engine.launched import GPU

pytest.importorskip("triton")


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


def test_a_file_keeps_unchanged_entries(tune: Callable[[str], ModuleType], tmp_path: Path) -> None:
    tables, out = tune("changed_tables"), tmp_path / "in_steps.json"
    assert tables.read_changes(out) == tables.read_changes(None) == {}
    tables.save(None, {"a": {8: {}}})
    tables.save(out, {"a": {8: {}}})
    tables.save(out, {"a": {16: {}, 4: {}}})
    assert list(json.loads(out.read_text())["linear"]["a"]) == ["4", "8", "16"]


def test_kernels_use_kept_settings_unless_others_are_tried(tune: Callable[[str], ModuleType]) -> None:
    tables = tune("changed_tables")

    def used() -> Setting:
        setting: Setting = tables.converted(tuning.tuned("linear", GPU, DOWN, 8, {}))
        return setting

    first = used()
    tables.ChangedTables(GPU, {}).keep({DOWN: first}, 8)
    assert used() == first
    one = {"kernel": "streamed", "block_n": 1, "block_d": 64, "num_warps": 1}
    changed = tables.ChangedTables(GPU, {DOWN: {8: one}})
    assert used() == ONE
    changed.use({DOWN: TWO}, 8)
    assert used() == TWO
    assert changed.setting(DOWN, 8) == used() == ONE
    changed.use({DOWN: TWO}, 8)
    changed.keep({DOWN: THREE}, 8)
    assert used() == THREE
    unchanged = tables.ChangedTables(GPU, {})
    unchanged.keep({DOWN: first}, 8)
    assert unchanged.changed == {}


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
    if name == "qwen3-0.6b":
        layers, *_ = targets.MODELS["Qwen3-0.6B"]
        assert found.bytes[DOWN] >= layers * 1024 * 3072 * 2


Cost = Callable[[Sequence[tuple[str, Setting]]], float]


class PlantedSeconds(float):
    """beside: what it takes beside another target."""

    beside: float


class PlantedNeighbour:
    def __init__(self, call: Callable[[], object]) -> None:
        call()

    def seconds_in_turns(self, runs: Sequence[PlantedSeconds], turns: int) -> list[tuple[float, float]]:
        """Half of the time counts as lost by the neighbour."""
        return [(run.beside / 2, run.beside / 2) for run in runs]


class PlantedTarget:
    """Two layers of Qwen3-0.6B, whose launches do not run; one layer of it is another target. cost: of what a call looks up, in
    microseconds. beside: the same beside that other target; None for times alone."""

    def __init__(
        self, tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, cost: Cost, beside: Cost | None = None
    ) -> None:
        self.script, targets = tune("in_layers"), tune("layer_targets")
        stack = tune("layers").Stack
        several = {"two": 2, "one": 1}
        monkeypatch.setattr(
            self.script,
            "TARGETS",
            {
                name: targets.LayerTarget(
                    partial(lambda layers, device: stack(layers, 1024, 16, 8, 3072, device=device), n), ()
                )
                for name, n in several.items()
            },
        )

        @contextmanager
        def captured(calls: Sequence[Callable[[], object]], **_: object) -> Iterator[PlantedSeconds]:
            asked: list[tuple[str, Setting]] = []
            operation, settings = targets.operation, targets.settings

            def record(kind: str, x_TD: Any, weight_ND: Any) -> Setting:
                found: Setting = settings(kind, x_TD, weight_ND)
                asked.append((targets.key(kind, weight_ND), found))
                return found

            with monkeypatch.context() as patch:
                patch.setattr(operation, "settings", record)
                calls[0]()
            took = PlantedSeconds(cost(asked) * US)
            took.beside = beside(asked) * US if beside is not None else math.inf
            yield took

        monkeypatch.setattr(tune("target_timer"), "captured", captured)
        monkeypatch.setattr(tune("target_timer"), "seconds_in_turns", lambda several, repeats: list(several))
        monkeypatch.setattr(self.script, "Neighbour", PlantedNeighbour)
        self._other = ("one", 4) if beside is not None else None
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
        tuner = self.script.LayerTuner("meta", tables, self.compile, most, 600.0, self._other)
        with torch.inference_mode(), kernels_of(GPU), VariantRecorder().recording():
            kept = in_use(rows)
            prepared = tuner.prepare("two", rows)
            assert in_use(rows) == kept
            self.keys = set(prepared.candidates)
            tuner.tune(prepared)
            assert in_use(rows) == kept or tables.changed
        changed: dict[str, dict[int, Any]] = tables.changed
        return changed


def in_use(rows: int) -> list[tuning.Config]:
    return [tuning.tuned("linear", GPU, key, rows, {}) for key in (QKV, OUT, GATED, DOWN, f"norm_{GATED}")]


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
    # What is compiled ahead: both kinds of kernels, those with a norm with and without an addition, and the norm for each number of
    # parts.
    assert {"some_rows", "_few_rows"} <= {variant.kernel.rpartition(":")[2] for variant in planted.compiled}
    few = [dict(variant.arguments) for variant in planted.compiled if variant.kernel.endswith(":_few_rows")]
    with_addition, without = (
        {(one["OUTPUTS"], one["BLOCK_N"], one["BLOCK_D"]) for one in few if one["NORM"] and one["ADD"] == adds}
        for adds in (True, False)
    )
    assert with_addition == without != set()
    parts = {dict(variant.arguments).get("PARTS") for variant in planted.compiled}
    assert len(parts - {None}) >= 4, parts


def test_tuning_changes_the_settings_of_those_rows_alone(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(asked: Sequence[tuple[str, Setting]]) -> float:
        return 1000 - sum(10 for key, setting in asked if key == DOWN and setting is None)

    planted = PlantedTarget(tune, monkeypatch, cost)
    assert planted.tune(8, 4) == {DOWN: {8: {}}}
    assert planted.keys == {QKV, OUT, GATED, DOWN, f"norm_{GATED}", f"norm_{QKV}"}


@pytest.mark.parametrize("loss", [13, 15])
def test_the_time_beside_another_target_counts_too(
    loss: int, tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What saves 20 us alone is kept if it then saves 0.3% in all: 6 us."""

    def cost(change: int) -> Cost:
        return lambda asked: 1000 + change * any(key == DOWN and setting is None for key, setting in asked)

    changes = PlantedTarget(tune, monkeypatch, cost(-20), cost(loss)).tune(8, 4)
    assert changes == ({DOWN: {8: {}}} if loss == 13 else {})


def test_a_change_that_slows_another_target_is_not_kept(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(asked: Sequence[tuple[str, Setting]]) -> float:
        plain = sum(key == DOWN and setting is None for key, setting in asked)
        return 1000 + plain * (50 if sum(key == DOWN for key, _ in asked) <= 2 else -10)

    assert PlantedTarget(tune, monkeypatch, cost).tune(8, 4) == {}


def test_changes_without_a_gain_once_others_are_undone_are_not_kept(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PlantedTarget(tune, monkeypatch, lambda asked: 1000 + sum(setting is None for _, setting in asked))
    left = {DOWN: None}
    monkeypatch.setattr(planted.script.LayerTuner, "_guarded", lambda tuner, name, rows, present, *_: present | left)
    assert planted.tune(1, 2) == {}
    assert planted.keys >= {GATED, f"norm_{GATED}"}


def test_a_setting_with_wrong_results_ends_the_search(
    tune: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PlantedTarget(tune, monkeypatch, lambda asked: 1000)
    known = tune("changed_tables").converted(tuning.shipped("linear", GPU, OUT)[32])
    planted.wrong_settings.add(known)
    with pytest.raises(SystemExit, match=r"^wrong by 1: \('linear-N1024-D2048-bfloat16', 8, "):
        planted.tune(8, 4)


def test_moves_keep_norms_and_parts_apart(tune: Callable[[str], ModuleType]) -> None:
    """A norm in one kernel with its product comes with the fastest setting before it that leaves no parts."""
    lookups, infinity = tune("layer_targets").Lookups, float("inf")
    found = lookups(Counter({"norm_x": 1, "y": 2}), {"norm_x": Counter({"y": 1})})
    search = tune("in_layers").LayerSearch(lambda choice: found, {"norm_x": (ONE, TWO, None), "y": (SPLIT, THREE)})
    present = {"norm_x": TWO, "y": SPLIT}
    assert search.keys(present) == ["y", "norm_x"]
    assert list(search.moves("y", present, {})) == [{"y": THREE}]
    for times, whole in (({SPLIT: 1.0, THREE: infinity}, []), ({SPLIT: 1.0, THREE: 2.0, None: 3.0}, [THREE])):
        moves = [{"norm_x": ONE, "y": setting} for setting in whole]
        assert list(search.moves("norm_x", present, {"y": times})) == [*moves, {"norm_x": None}]


@pytest.mark.parametrize("rows", [1, 4, 8, 16, 32, 64])
def test_each_kernel_has_candidates_for_its_rows_and_maps(rows: int, tune: Callable[[str], ModuleType]) -> None:
    script, held = tune("in_layers"), 0
    for key in (QKV, OUT, GATED, f"norm_{GATED}"):
        kind, outputs, _ = script.shape_of(key)
        found = script.candidates_of(key, rows, [], 10_000)
        assert any(isinstance(setting, StreamedSettings) for setting in found) == (rows <= 4)
        tiled = [setting for setting in found if isinstance(setting, TiledSettings)]
        held += sum(setting.held for setting in tiled)
        assert any(setting.splits > 1 for setting in tiled) == (kind == "linear")
        # Those that fill the device once come first.
        fills = [script.fill(setting, kind, outputs) for setting in tiled if setting.splits == 1 and not setting.held]
        assert fills == sorted(fills)
    assert (held > 0) == (rows <= 32)


def test_a_grid_that_fills_the_device_once(tune: Callable[[str], ModuleType]) -> None:
    fill, outputs = tune("in_layers").fill, 132 * 16
    tiled = TiledSettings(tile_n=16, tile_d=64, slices=1, rows_left=False, num_warps=8, num_stages=2)
    assert fill(tiled, "linear", outputs) == fill(tiled, "norm_gated", 2 * outputs) == 0
    assert fill(StreamedSettings(block_n=16, block_d=64, num_warps=4), "linear", outputs) == 1
    assert fill(msgspec.structs.replace(tiled, splits=4), "linear", outputs) == 2


def test_candidates_hold_every_setting_of_the_tables(tune: Callable[[str], ModuleType]) -> None:
    script = tune("in_layers")
    for key in (QKV, OUT, GATED, f"norm_{GATED}", HEAD + "-bfloat16"):
        known = tuning.shipped("linear", GPU, key).values()
        for rows, most in ((1, 24), (16, 24), (64, 1)):
            found = script.candidates_of(key, rows, known, most)
            kept = {setting for config in known if (setting := script.converted(config)) is not None}
            # With the other time at which the next kernel may start.
            others = {
                msgspec.structs.replace(setting, early=not setting.early)
                for setting in kept
                if isinstance(setting, TiledSettings)
            }
            assert len(found) == len(set(found)) <= max(most, len(kept | others))
            assert kept | others <= set(found)
