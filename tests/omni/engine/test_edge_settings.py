"""Settings of edges and of the stages' places: from a file, the command line or Python, with the field in every error."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from omni.api.settings import layers_of
from omni.config import SettingsLayer
from omni.engine.configuration import configure
from omni.errors import ConfigError
from omni.pipeline import Edge
from tests.support.fake_graph import PIPELINE, fake_pipeline

EDGE = "edges.writer-speaker"
TABLE = """
[edges.writer-speaker]
connector = "shm"
credit = 5
pool_bytes = 1048576

[writer]
place = "cpu/2"
"""


def layers(file: Path | None = None, overrides: Mapping[str, object] | None = None) -> list[SettingsLayer]:
    return layers_of(config=file, overrides=overrides)


def edge_of(found: list[SettingsLayer]) -> Edge:
    """The edge of the settings; the other one is as it was."""
    pipeline, _ = configure(PIPELINE, found)
    other, edge = pipeline.edges
    assert other == PIPELINE.edges[0]
    return edge


@pytest.mark.parametrize(
    "overrides",
    [
        {f"{EDGE}.connector": "shm", f"{EDGE}.credit": "5", f"{EDGE}.pool_bytes": "1048576"},
        {f"{EDGE}.connector": "shm", f"{EDGE}.credit": 5, f"{EDGE}.pool_bytes": 2**20},
        {EDGE: {"connector": "shm", "credit": 5, "pool_bytes": 2**20}},
        {EDGE: '{"connector": "shm", "credit": 5, "pool_bytes": 1048576}'},
        {"edges": {"writer-speaker": {"connector": "shm", "credit": 5, "pool_bytes": 2**20}}},
    ],
)
def test_an_edge_is_set_by_dotted_path_as_text_value_or_table(overrides: Mapping[str, object]) -> None:
    edge = edge_of(layers(overrides=overrides))
    assert (edge.connector, edge.credit, edge.pool_bytes) == ("shm", 5, 2**20)
    assert (edge.name, edge.adapter, edge.memory) == ("writer->speaker", PIPELINE.edges[1].adapter, "device")


def test_an_edge_is_set_by_a_table_of_a_file_and_overrides_win(tmp_path: Path) -> None:
    file = tmp_path / "omni.toml"
    file.write_text(TABLE)
    pipeline, settings = configure(PIPELINE, layers(file, {f"{EDGE}.credit": "7", "speaker.place": "cpu/3"}))
    edge = pipeline.edges[1]
    assert (edge.connector, edge.credit, edge.pool_bytes) == ("shm", 7, 2**20)
    assert [pipeline.stage(name).place for name in ("writer", "speaker", "seer")] == ["cpu/2", "cpu/3", None]
    found = {setting.path: (setting.value, setting.origin) for setting in settings}
    assert found[f"{EDGE}.connector"] == ("shm", str(file))
    assert found[f"{EDGE}.credit"] == (7, "overrides")
    assert found["edges.seer-writer.credit"] == (64, "default")
    assert found["writer.place"] == ("cpu/2", str(file))
    assert found["seer.place"] == (None, "default")


def test_the_origin_of_an_edge_setting_is_family_or_default() -> None:
    pipeline, settings = configure(fake_pipeline(credit=3), [])
    assert pipeline == fake_pipeline(credit=3)
    found = {setting.path: (setting.value, setting.origin) for setting in settings}
    assert found[f"{EDGE}.credit"] == (3, "family")
    assert found[f"{EDGE}.pool_bytes"] == (256 * 2**20, "default")
    assert found[f"{EDGE}.connector"] == (None, "default")


def test_the_value_none_removes_a_connector_setting() -> None:
    found = [
        SettingsLayer("first", {f"{EDGE}.connector": "shm"}),
        SettingsLayer("second", {f"{EDGE}.connector": "none"}),
    ]
    assert edge_of(found).connector is None


EDGES = "use one of edges.seer-writer, edges.writer-speaker"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{EDGE}.credit", "0", f"{EDGE}.credit: credit must be at least 1"),
        (f"{EDGE}.pool_bytes", "1024", f"{EDGE}.pool_bytes: pool_bytes must be at least 65536"),
        (
            f"{EDGE}.pool_bytes",
            2**41,
            f"{EDGE}.pool_bytes: pool_bytes must be at least 65536, at most 1,099,511,627,776",
        ),
        (f"{EDGE}.credit", "many", f"{EDGE}.credit: 'many' does not fit: Expected `int`, got `str`"),
        (f"{EDGE}.connector", 3, f"{EDGE}.connector: 3 does not fit"),
        (f"{EDGE}.memory", "host", f"{EDGE}.memory: there is no option 'memory'; use one of connector, credit, pool_"),
        (EDGE, "3", f"{EDGE}: names no option; use one of connector, credit, pool_bytes"),
        (f"{EDGE}.credit.x", "3", f"{EDGE}.credit.x: 'credit' has no fields; set credit itself"),
        ("edges.speaker-writer.credit", "3", f"edges.speaker-writer.credit: there is no such edge; {EDGES}"),
        ("edges.writer.credit", "3", f"edges.writer.credit: there is no such edge; {EDGES}"),
        ("edges.writer-speaker2.credit", "3", f"edges.writer-speaker2.credit: there is no such edge; {EDGES}"),
        ("edges.credit", "3", f"edges.credit: there is no such edge; {EDGES}"),
        ("edges", 3, f"edges: there is no such edge; {EDGES}"),
        ("writer.place", 2, "writer.place: 2 does not fit"),
    ],
)
def test_an_invalid_edge_setting_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure(PIPELINE, layers(overrides={path: value}))
    assert str(caught.value).startswith(message)


def test_an_error_of_a_file_names_it(tmp_path: Path) -> None:
    file = tmp_path / "omni.toml"
    for text, message in (
        ("[edges.writer-speaker]\ncredit = 0\n", f"{EDGE}.credit: credit must be at least 1"),
        ("[edges.writer-reader]\ncredit = 4\n", "edges.writer-reader: there is no such edge"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            configure(PIPELINE, layers(file))
        assert str(caught.value).startswith(f"{file}: {message}")


@pytest.mark.parametrize(("field", "value", "least"), [("credit", 0, 1), ("pool_bytes", 2**16 - 1, 2**16)])
def test_a_family_s_edge_has_the_same_bounds(field: str, value: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least {least}"):
        Edge(producer="a", consumer="b", **{field: value})  # type: ignore[arg-type]
    Edge(producer="a", consumer="b", **{field: least})  # type: ignore[arg-type]
