"""`omni explain`: what would run, without running it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typer.testing import CliRunner, Result

from omni.checkpoint import Checkpoint
from omni.cli import app
from omni.cli.explain import make_report
from omni.cli.options import Choices
from omni.cli.target import resolve_target
from omni.config import SettingsLayer
from omni.device import Device
from omni.device.cpu import CpuDevice
from omni.device.meta import MetaDevice
from omni.engine import EngineOptions, load_stages, measure_stages, resolve_pipeline
from omni.frontend.options import FrontendOptions
from omni.media.options import MediaOptions
from omni.pipeline import EdgeSettings
from omni.plugin import ConnectorEntry
from omni.plugin.manager import load_plugins
from omni.stage import LoadedStage
from omni.testing.engines import TickedEngine
from tests.support.echo_family import EchoKind, echo_model
from tests.support.echo_plugin import POINT
from tests.support.entry_points import own_entry_points

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("installed")]

_TOWER = ("max_batch_length", "cache_bytes")
_STAGE = {"max_model_len": 256, "max_num_seqs": 2, "max_num_batched_tokens": 64}
SETTINGS: dict[str, object] = {
    **{f"{tower}.{name}": 32 for tower in ("audio_encoder", "vision_encoder") for name in _TOWER},
    **{f"{stage}.{name}": value for stage in ("thinker", "talker") for name, value in _STAGE.items()},
    "code2wav.max_num_seqs": 2,
    "code2wav.first_chunk_frames": 1,
    "code2wav.chunk_frames": 2,
}
"""Small, so that measuring is quick."""
SET = [word for path, value in SETTINGS.items() for word in ("--set", f"{path}={value}")]


@pytest.fixture
def points() -> list[EntryPoint]:
    return [POINT, *own_entry_points()]


def call(*arguments: object) -> Result:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    return CliRunner().invoke(app, ["explain", *map(str, arguments), *device])


def report(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def memory_of(found: Any) -> Any:
    """Of a report with one place."""
    (memory,) = found["memory"].values()
    return memory


def test_the_text_shows_everything(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "omni.toml"
    file.write_text("[thinker]\nblock_size = 8\n[thinker.sampling]\ntop_k = 7\n")
    result = call(tiny_model, "--config", file, "--set", "talker.max_num_seqs=3", "--device", "cpu")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"{tiny_model}: family qwen3_omni, on cpu in float32, in a thread, weights from the checkpoint"
    assert "│ audio_encoder │ │ vision_encoder │" in lines
    assert "thinker ar 0 float32 omni_qwen3_omni.thinker:build" in lines
    assert lines[lines.index("MODALITY STAGE GIVEN") :][1:5] == [
        "text thinker by default",
        "audio code2wav by default",
        "codes talker on request",
        "stage-less sampling parameters apply to thinker",
    ]
    assert "thinker: prefix cache works: all inputs of the stage have a content key" in lines
    assert "talker -> code2wav local device same process, same device" in lines
    assert f"thinker.block_size 8 {file}" in lines
    assert f"thinker.sampling.top_k 7 {file}" in lines
    assert "talker.max_num_seqs 3 --set" in lines
    assert "engine.device cpu argument" in lines
    assert "talker.sampling.top_k 50 family" in lines
    assert "code2wav.chunk_frames 25 default" in lines
    assert any(line.startswith("talker.sampling.suppress_token_ids [") and "in all] family" in line for line in lines)
    drawing = result.stdout[: result.stdout.index("\nStages")].splitlines()
    assert max(map(len, drawing[2:])) <= 80


def test_the_report_has_every_setting_of_engine_front_end_and_stages(tiny_model: Path) -> None:
    settings = report(tiny_model, "--device", "cpu")["settings"]
    paths = [setting["path"] for setting in settings]
    assert len(set(paths)) == len(paths)
    plan = resolve_pipeline(Checkpoint(tiny_model), load_plugins())
    edges = [(edge.setting, EdgeSettings()) for edge in plan.pipeline.edges]
    assert "edges.talker-code2wav" in dict(edges)
    for name, options in [
        *edges,
        ("engine", EngineOptions()),
        ("frontend", FrontendOptions()),
        ("frontend.media", MediaOptions()),
        *((stage.name, stage.options) for stage in plan.pipeline.stages),
    ]:
        for field, value in msgspec.structs.asdict(options).items():
            if not isinstance(value, msgspec.Struct):
                assert paths.count(f"{name}.{field}") == 1


def test_the_report_has_the_settings_of_edges(tiny_model: Path) -> None:
    found = report(
        tiny_model, "--set", "edges.talker-code2wav.credit=9", "--set", "edges.talker-code2wav.connector=local"
    )
    edge = next(edge for edge in found["edges"] if edge["producer"] == "talker")
    assert (edge["credit"], edge["connector"]) == (9, "local")
    assert edge["why"] == "as set; same process, same device"
    assert (edge["producer_place"], edge["consumer_place"]) == ("cpu", "cpu")
    settings = {setting["path"]: (setting["value"], setting["origin"]) for setting in found["settings"]}
    assert settings["edges.talker-code2wav.credit"] == (9, "--set")
    assert settings["edges.talker-code2wav.connector"] == ("local", "--set")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("edges.talker-narrator.credit=9", "edges.talker-narrator.credit: there is no such edge"),
        ("edges.talker-code2wav.credit=0", "edges.talker-code2wav.credit: credit must be at least 1"),
        ("edges.talker-code2wav.connector=fabric", "there is no connector 'fabric'"),
        ("code2wav.place=tpu", "code2wav.place: 'tpu' is not a device"),
        ("code2wav.place=cuda:1,cuda:1", "code2wav.place: 'cuda:1' is named twice"),
    ],
)
def test_a_wrong_setting_of_an_edge_or_a_place_names_it(tiny_model: Path, setting: str, message: str) -> None:
    result = call(tiny_model, "--set", setting)
    assert result.exit_code != 0
    assert message in " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (("--set", "edges.talker-code2wav.connector=local"), "'local' stays in one process, and the stages are on"),
        (("--set", "edges.talker-code2wav.connector=cuda_ipc"), "'cuda_ipc' does not connect cuda:0 and cpu"),
        (("--set", "engine.process=thread"), 'engine.process: is "thread", and the stages are placed on several'),
    ],
)
def test_an_impossible_placement_is_refused(
    tiny_model: Path, tmp_path: Path, choices: tuple[str, str], message: str
) -> None:
    """Before a weight is read: there are none."""
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).symlink_to(file)
    result = call(tmp_path, "--device", "cuda:0", "--place", "code2wav=cpu", *choices)
    assert result.exit_code != 0
    assert message in " ".join((result.stdout + result.stderr).split())


def test_an_edge_has_a_row_for_each_pair_of_places(tiny_model: Path) -> None:
    settings = ("code2wav.place=cpu/2,cpu/3",)
    entry = ConnectorEntry(name="copy", connector="tests.support.copy_connector:CopyConnector")
    target = resolve_target(str(tiny_model), Choices(settings=settings, device="cpu"))
    connectors = replace(target.plugins.connectors, entries={**target.plugins.connectors.entries, "copy": entry})
    pipeline = target.plan.pipeline
    edge = msgspec.structs.replace(pipeline.edge("talker", "code2wav"), connector="copy")
    plan = replace(target.plan, pipeline=pipeline.extended(edges=[edge]))
    target = replace(target, plan=plan, plugins=replace(target.plugins, connectors=connectors))
    rows = [edge for edge in make_report(str(tiny_model), target, measure=False).edges if edge.producer == "talker"]
    assert [(row.producer_place, row.consumer_place, row.why) for row in rows] == [
        ("cpu", "cpu/2", "as set; two processes on cpu"),
        ("cpu", "cpu/3", "as set; two processes on cpu"),
    ]


def test_the_report_has_the_dtype_of_each_stage(tiny_model: Path) -> None:
    found = report(tiny_model, "--device", "cpu", "--dtype", "bfloat16", "--set", "code2wav.dtype=float32")
    assert found["dtype"] == "bfloat16"
    assert {stage["name"]: stage["dtype"] for stage in found["stages"]}["code2wav"] == "float32"
    assert {stage["name"]: stage["dtype"] for stage in found["stages"]}["talker"] == "bfloat16"
    settings = {setting["path"]: (setting["value"], setting["origin"]) for setting in found["settings"]}
    assert settings["code2wav.dtype"] == ("float32", "--set")
    assert settings["talker.dtype"] == (None, "default")


def test_no_weight_is_needed_and_the_numbers_are_those_of_loaded_stages(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        if "safetensors" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    found = memory_of(report(tmp_path, *SET, "--device", "cpu"))
    checkpoint = Checkpoint(tiny_model)
    plan = resolve_pipeline(checkpoint, load_plugins(), [SettingsLayer("test", SETTINGS)])
    loaded = load_stages(plan, checkpoint, CpuDevice(), dtype="float32", load_format="auto")
    assert found["stages"].keys() == loaded.keys()
    for name, stage in loaded.items():
        footprint, share = stage.footprint, found["stages"][name]
        assert share["weights"] == footprint.weights > 0
        assert (share["page_bytes"], share["working"], share["pages"]) == (footprint.page_bytes, None, None)
        assert (share["fewest_pages"], share["most_pages"]) == (footprint.fewest_pages, footprint.most_pages)
        assert share["least"] == share["weights"] + share["fixed"] + share["page_bytes"] * share["fewest_pages"]
        assert share["most"] == share["weights"] + share["fixed"] + share["page_bytes"] * share["most_pages"]
    assert (found["budget"], found["problem"], found["measured"]) == (None, None, False)


def test_measuring_divides_as_an_engine_does(tiny_model: Path) -> None:
    most = sum(share["most"] for share in memory_of(report(tiny_model, *SET, "--measure"))["stages"].values())
    memory_bytes = most - 100_000
    settings = [*SET, "--set", f"engine.memory_bytes={memory_bytes}"]
    found = memory_of(report(tiny_model, *settings, "--measure"))
    assert (found["measured"], found["budget"], found["bound"]) == (True, memory_bytes, "engine.memory_bytes")
    engine = TickedEngine(tiny_model, load_plugins(), SETTINGS, memory_bytes=memory_bytes).engine
    engine.close()
    for name, memory in engine.memory.items():
        share = found["stages"][name]
        assert (share["weights"], share["working"], share["pages"]) == (memory.weights, memory.working, memory.pages)
        assert share["pages"] < share["most_pages"] or not share["most_pages"]


UNKNOWN = "unknown, as cuda:7 does not exist here: give it with --set engine.memory_bytes=BYTES"


def rows_of(memory: Any) -> set[int]:
    return {memory["stages"][name]["rows"] for name in ("thinker", "talker", "code2wav") if name in memory["stages"]}


QUICK = {"thinker.max_model_len": 256, "talker.max_model_len": 256, "code2wav.chunk_frames": 2}
QUICK_SET = [word for path, value in QUICK.items() for word in ("--set", f"{path}={value}")]
ROWS_HEADER = "STAGE ROWS ORIGIN BYTES PER ROW PAGES PER ROW BYTES OF ALL ROWS LEFT FOR THE PREFIX CACHE"
SET_OF_ROWS = [word for stage in ("thinker", "talker", "code2wav") for word in ("--set", f"{stage}.max_num_seqs=4")]


def test_the_report_says_which_pages_are_for_the_prefix_cache(tiny_model: Path) -> None:
    said = "thinker: pages beyond those of all rows at full length are for the prefix cache"
    chosen = [*QUICK_SET, *SET_OF_ROWS, "--set", "talker.prefix_cache=false", "--device", "cuda"]
    bounded = (*chosen, "--set", "engine.memory_bytes=10000000000")
    shares = memory_of(report(tiny_model, *bounded))["stages"]
    full = 256 // 16
    assert [shares[name]["most_pages"] for name in ("thinker", "talker")] == [128 * full, 4 * full]
    lines = [line.strip() for line in call(tiny_model, *bounded).stdout.splitlines()]
    assert said in lines
    assert said not in call(tiny_model, *bounded, "--set", "thinker.prefix_cache=false").stdout


def test_the_report_says_how_rows_follow_from_memory(tiny_model: Path) -> None:
    bounded = [tiny_model, *QUICK_SET, "--device", "cuda", "--set"]
    most = memory_of(report(*bounded, "engine.memory_bytes=10000000000"))
    assert (rows_of(most), most["rows"]["rows"], most["rows"]["most"]) == ({128}, 128, 128)
    assert most["rows"]["why"] == "the maximum, which fits"
    # So little that no prefix cache reaches its maximum.
    budget = sum(each["least"] for each in most["stages"].values()) - 2**22
    few = memory_of(report(*bounded, f"engine.memory_bytes={budget}"))
    rows, stages = few["rows"], few["rows"]["stages"]
    assert rows_of(few) == {rows["rows"]}
    assert 1 < rows["rows"] < 128
    assert rows["why"] == "the largest number that fits, with a request of typical length in every row"
    assert stages.keys() == {"thinker", "talker", "code2wav"}
    for name, row in stages.items():
        share = few["stages"][name]
        assert row["typical"] == rows["rows"] * (row["row_bytes"] + row["row_pages"] * share["page_bytes"])
        assert row["row_pages"] == (0 if name == "code2wav" else 256 // 16)
    # All is used up to less than a page of each.
    used = sum(share["weights"] + share["fixed"] for share in few["stages"].values())
    used += sum(row["typical"] - rows["rows"] * row["row_bytes"] + row["free"] for row in stages.values())
    assert 0 <= budget - used < sum(share["page_bytes"] for share in few["stages"].values())
    text = [" ".join(line.split()) for line in call(*bounded, f"engine.memory_bytes={budget}").stdout.splitlines()]
    assert f"rows: {rows['rows']} of at most 128, before the working memory of steps: {rows['why']}" in text
    table = text[text.index(ROWS_HEADER) :]
    talker = next(line for line in table if line.startswith("talker "))
    row = stages["talker"]
    assert row.pop("chosen") is False
    assert talker.replace(",", "").replace(" from memory ", " ").split()[1:] == list(map(str, row.values()))


def test_rows_that_the_user_set_are_in_the_table_of_rows(tiny_model: Path) -> None:
    chosen = [*QUICK_SET, "--set", "thinker.max_num_seqs=3", "--set", "engine.memory_bytes=10000000000"]
    found = memory_of(report(tiny_model, *chosen, "--device", "cuda"))
    stages, shares = found["rows"]["stages"], found["stages"]
    assert {name: (row["rows"], row["chosen"]) for name, row in stages.items()} == {
        "thinker": (3, True),
        "talker": (128, False),
        "code2wav": (128, False),
    }
    thinker, share = stages["thinker"], shares["thinker"]
    assert thinker["row_bytes"] > 0
    assert thinker["typical"] == 3 * (thinker["row_bytes"] + 16 * share["page_bytes"])
    # Of a request, a typical length is the full one here, and the cache has the pages of the other rows of the maximum.
    assert thinker["free"] == 125 * 16 * share["page_bytes"]
    text = [" ".join(line.split()) for line in call(tiny_model, *chosen, "--device", "cuda").stdout.splitlines()]
    row = text[text.index(ROWS_HEADER) + 1]
    assert row.startswith("thinker 3 set by the user ")
    assert row.endswith(f" {thinker['typical']:,} {thinker['free']:,}")


def test_unknown_memory_is_not_called_unbounded(tiny_model: Path) -> None:
    found = memory_of(report(tiny_model, "--device", "cuda:7"))
    assert (found["budget"], found["bound"], found["rows"]["rows"]) == (None, UNKNOWN, 128)
    text = [line.strip() for line in call(tiny_model, "--device", "cuda:7").stdout.splitlines()]
    assert f"pool: {UNKNOWN}" in text
    assert "rows: 128 of at most 128: the maximum, as the memory of cuda:7 is unknown here" in text
    assert not [line for line in text if "nothing bounds" in line]


def test_measured_rows_are_those_of_an_engine(tiny_model: Path) -> None:
    towers = {f"{tower}.{name}": 32 for tower in ("audio_encoder", "vision_encoder") for name in _TOWER}
    settings = {**QUICK, **towers, "thinker.max_num_batched_tokens": 64, "talker.max_num_batched_tokens": 64}
    words = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
    memory_bytes = 15_000_000 + 2 * 512 * 2**20  # for the towers' held outputs
    found = memory_of(report(tiny_model, *words, "--set", f"engine.memory_bytes={memory_bytes}", "--measure"))
    engine = TickedEngine(tiny_model, load_plugins(), settings, memory_bytes=memory_bytes).engine
    engine.close()
    assert rows_of(found) == {engine.memory["thinker"].rows} == {found["rows"]["rows"]}
    assert 1 < found["rows"]["rows"] < 32
    assert found["stages"]["thinker"]["pages"] == engine.memory["thinker"].pages


def test_rows_follow_from_the_part_of_each_place(tiny_model: Path) -> None:
    places = ["--place", "talker=cuda:1,cuda:1/b", "--place", "code2wav=cuda:2"]
    chosen = ["--set", "code2wav.max_num_seqs=5", "--set", "engine.memory_bytes=8000000"]
    encoders = ["--place", "audio_encoder=cpu", "--place", "vision_encoder=cpu"]
    found = report(tiny_model, *QUICK_SET, *places, *encoders, *chosen, "--device", "cuda:0")["memory"]
    assert found["cuda:2"]["rows"] is None
    assert rows_of(found["cuda:2"]) == {5}
    # The two engines of a device have half of it each.
    assert found["cuda:1"]["rows"] == found["cuda:1/b"]["rows"]
    assert found["cuda:1"]["budget"] == 4_000_000
    alone = report(tiny_model, *QUICK_SET, *encoders, "--place", "talker=cuda:1", *chosen, "--device", "cuda:0")[
        "memory"
    ]
    assert alone["cuda:1"]["rows"]["rows"] > found["cuda:1"]["rows"]["rows"] > 1


def test_rows_on_unbounded_memory_and_chosen_ones(tiny_model: Path) -> None:
    found = memory_of(report(tiny_model))
    assert (rows_of(found), found["rows"]["rows"], found["rows"]["stages"]) == ({32}, 32, {})
    assert "rows: 32 of at most 32: the maximum, as nothing bounds memory" in call(tiny_model).stdout
    assert memory_of(report(tiny_model, *SET))["rows"] is None
    assert "rows:" not in call(tiny_model, *SET).stdout


def test_measuring_without_a_bound_measures_all_the_same(tiny_model: Path) -> None:
    result = call(tiny_model, *SET, "--measure")
    assert "working memory and pages: measured and divided as at start" in result.stdout
    (row,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["sum"]]
    assert int(row[3].replace(",", "")) > 0


def test_each_stage_is_measured_on_the_device_of_its_place(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(CpuDevice):
        """Stands for a device that is not here."""

        free = 2**33

        def free_memory(self) -> int:
            return self.free

    opened = {"cpu": CpuDevice(), "cuda:1": Other()}
    monkeypatch.setattr("omni.cli.memory.open_device", opened.__getitem__)
    loaded: dict[Device, set[str]] = {}

    def spied(stages: Mapping[str, LoadedStage], device: Device) -> dict[str, int]:
        loaded[device] = set(stages)
        return measure_stages(stages, device)

    monkeypatch.setattr("omni.cli.memory.measure_stages", spied)
    places = ["--place", "talker=cuda:1", "--place", "code2wav=cuda:1/a,cpu"]
    found = report(tiny_model, *SET, *places, "--measure")["memory"]
    rest = {"audio_encoder", "vision_encoder", "thinker", "code2wav"}
    assert {place: set(memory["stages"]) for place, memory in found.items()} == {
        "cpu": rest,
        "cuda:1": {"talker"},
        "cuda:1/a": {"code2wav"},
    }
    assert loaded.keys() == set(opened.values())
    assert loaded[opened["cpu"]] == rest
    part = Other.free // 2
    assert [memory["budget"] for memory in found.values()] == [None, part - 2**28, part - 2**28]
    bound = "free on cuda:1, minus a reserve"
    assert [memory["bound"] for memory in found.values()][1:] == [bound, bound]
    text = call(tiny_model, *SET, *places, "--measure").stdout
    assert [line for line in text.splitlines() if line.startswith("Memory")] == [
        f"Memory on {place}, in bytes" for place in ("cpu", "cuda:1", "cuda:1/a")
    ]


def test_memory_is_counted_by_place_without_the_devices(tiny_model: Path) -> None:
    found = report(tiny_model, *SET, "--place", "talker=cuda:7")["memory"]
    assert set(found["cuda:7"]["stages"]) == {"talker"}
    assert found["cuda:7"]["bound"] == UNKNOWN
    assert "talker" not in found["cpu"]["stages"]


def test_too_little_memory_is_part_of_the_report_until_it_is_measured(tiny_model: Path) -> None:
    small = [tiny_model, "--set", "engine.memory_bytes=1000000", "--device", "cpu"]
    result = call(*small)
    assert result.exit_code == 0
    assert "problem: engine.memory_bytes: the stages need" in result.stdout
    measured = call(*small, "--measure")
    assert (measured.exit_code, measured.stdout) == (1, "")
    assert measured.stderr.startswith("error: engine.memory_bytes: the stages need")
    rows = [row.split()[0] for row in measured.stderr.splitlines()[1:]]
    assert rows == ["stage", "audio_encoder", "vision_encoder", "thinker", "talker", "code2wav"]


def test_pages_that_are_chosen_are_the_fewest_and_the_most(tiny_model: Path) -> None:
    found = report(tiny_model, "--set", "talker.num_blocks=40", "--device", "cpu")
    share = memory_of(found)["stages"]["talker"]
    assert (share["fewest_pages"], share["most_pages"]) == (40, 40)
    assert share["least"] == share["most"]


def test_a_device_that_is_elsewhere_can_be_asked_for(tiny_model: Path) -> None:
    found = report(tiny_model, "--device", "cuda:7")
    on_cpu = report(tiny_model, "--device", "cpu")
    assert (found["device"], found["dtype"]) == ("cuda:7", "bfloat16")
    assert memory_of(found)["bound"] == UNKNOWN
    thinker, same = (memory_of(each)["stages"]["thinker"]["weights"] for each in (found, on_cpu))
    assert same / 2 <= thinker < same


def test_a_present_device_reports_its_free_memory(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Card(MetaDevice):
        def free_memory(self) -> int:
            return 2**33

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("omni.cli.memory.open_device", lambda name: Card())
    memory = memory_of(report(tiny_model, "--device", "cuda"))
    assert memory["budget"] == 2**33 - 2**28
    assert (memory["bound"], memory["problem"]) == ("free on cuda:0, minus a reserve", None)


def test_a_prefix_cache_works_unless_it_is_off_or_an_edge_has_no_key(tiny_model: Path) -> None:
    target = resolve_target(str(tiny_model), Choices(settings=("thinker.prefix_cache=false",), device="cpu"))
    edges = tuple(msgspec.structs.replace(edge, keyed=edge.consumer != "talker") for edge in target.plan.pipeline.edges)
    pipeline = msgspec.structs.replace(target.plan.pipeline, edges=edges)
    found = make_report("m", replace(target, plan=replace(target.plan, pipeline=pipeline)), measure=False)
    caches = {stage.name: stage.prefix_cache for stage in found.stages if stage.prefix_cache is not None}
    assert (caches["thinker"].works, caches["thinker"].why) == (False, "thinker.prefix_cache is off")
    why = "not past tensors from thinker: their adapter gives no content key"
    assert (caches["talker"].works, caches["talker"].why) == (False, why)


def test_explain_shows_the_rest_if_a_kind_cannot_be_built_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: EchoKind, context: object) -> None:
        raise RuntimeError("no contents")

    monkeypatch.setattr(EchoKind, "load", load)
    result = call(echo_model(tmp_path), "--device", "cpu")
    assert result.exit_code == 0
    assert "problem: unknown: RuntimeError: no contents" in result.stdout
    assert "writer.tokens_per_tick" in result.stdout


@pytest.mark.parametrize(("encoding", "corner"), [("ascii", "+-"), ("latin-1", "+-"), ("utf-8", "┌─")])
def test_drawings_are_ascii_where_the_terminal_has_no_more(tmp_path: Path, encoding: str, corner: str) -> None:
    model = echo_model(tmp_path / "mod\u00e8le \u2603")
    result = CliRunner(charset=encoding).invoke(app, ["explain", str(model), "--device", "cpu"])
    assert result.exit_code == 0
    assert f"{corner}" in result.stdout
    assert ("\u2603" in result.stdout) == (encoding == "utf-8")
    assert ("\\u2603" in result.stdout) == (encoding != "utf-8")
