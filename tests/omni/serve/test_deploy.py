"""The files of `deploy/`: they name metrics, options, paths and endpoints that exist."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec import structs
from packaging.version import Version
from prometheus_client.parser import text_string_to_metric_families

from omni.cli import app
from omni.serve.app import ENDPOINTS
from omni.serve.options import ServeOptions
from tests.omni.serve.http_server import echo_omni, served
from tests.support.entry_points import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "serving.md").read_text()
OF_STAGES = {
    *("omni_prefix_cache_hit_tokens_total", "omni_prefix_cache_query_tokens_total", "omni_prefix_cache_blocks"),
    *("omni_drafted_tokens_total", "omni_accepted_drafts_total"),
    "omni_sample_tokens_seconds_bucket",
}
"""Only a stage with a prefix cache, a drafter or a sampler has them, and a stage of the echo model has no counters."""
NAME = re.compile(r"\b(?:omni|process)_[a-z_]+\b")


def options() -> set[str]:
    """Of `omni serve --help`."""
    command: Any = typer.main.get_command(app)
    return {name for each in command.commands["serve"].params for name in each.opts if name.startswith("--")} | {
        "--help"
    }


@pytest.fixture(scope="module")
def metrics_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `/metrics` gives after a spoken answer and a refused request."""
    from tests.support.echo_family import echo_model

    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    with served(echo_omni(echo_model(tmp_path_factory.mktemp("deploy")))) as server:
        server.post("/v1/chat/completions", json={**body, "modalities": ["text", "audio"]})
        server.post("/v1/chat/completions", json={**body, "messages": [{"role": "user", "content": ""}]})
        return server.get("/metrics").text


@pytest.fixture(scope="module")
def exposed(metrics_text: str) -> dict[str, set[str]]:
    """Labels by name of every sample."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics_text):
        ending = {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
        found.setdefault(f"{family.name}{ending}", set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def queries() -> list[str]:
    return [
        one["expr"] for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"] for one in panel["targets"]
    ]


def test_every_metric_of_the_dashboard_exists(exposed: dict[str, set[str]]) -> None:
    asked = {name for query in queries() for name in NAME.findall(query)}
    assert len(asked) > 25
    assert asked - exposed.keys() == set()


def test_every_label_of_the_dashboard_exists(exposed: dict[str, set[str]]) -> None:
    for query in queries():
        (labels,) = {frozenset(re.split(r", *", one)) for one in re.findall(r"by \(([^)]*)\)", query)} or {frozenset()}
        for name in NAME.findall(query):
            if exposed[name] or name not in OF_STAGES | {"omni_stage_events_total"}:
                assert labels <= exposed[name], (query, name)


def test_every_metric_of_the_server_is_in_the_dashboard(exposed: dict[str, set[str]]) -> None:
    shown = " ".join(queries())
    own = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed if name.startswith("omni_")}
    assert {name for name in own if name not in shown} == {"omni_build_info", "omni_requests_finished_total"}


def test_counters_count_and_gauges_do_not(exposed: dict[str, set[str]]) -> None:
    """A rate is of a counter or a histogram, and a counter has a rate."""
    for query in queries():
        for name in NAME.findall(query):
            assert name.endswith(("_total", "_bucket")) == (f"rate({name}[" in query), query


@pytest.mark.parametrize("file", ["omni.service", "Containerfile"])
def test_options_of_the_files_exist(file: str) -> None:
    asked = set(re.findall(r"--[a-z][a-z-]+", " ".join(_commands((DEPLOY / file).read_text()))))
    assert {"--host", "--port"} <= asked
    assert asked - options() == set()


def _commands(text: str) -> list[str]:
    """Lines that start the server."""
    return [line for line in text.splitlines() if line.startswith(("ExecStart=", "ENTRYPOINT"))]


def test_options_of_the_page_exist() -> None:
    asked = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    others = {"--shm-size", "--restart"}
    assert asked - options() - others == set()


def test_every_option_of_the_server_is_on_the_page() -> None:
    command: Any = typer.main.get_command(app)
    of_models = {name for each in command.commands["run"].params for name in each.opts}
    assert {name for name in options() - of_models if name not in PAGE} == {"--help"}


def test_every_limit_is_on_the_page_with_its_default() -> None:
    """Of those that have no option of their own."""
    shown = {name: _number(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d,]+(?: [MG]iB)?) \|", PAGE, re.M)}
    fields = {field.name: field.default for field in structs.fields(ServeOptions)}
    own = {name.removeprefix("--").replace("-", "_") for name in options()} | {"api_keys", "model_names", "voices"}
    assert shown == {name: default for name, default in fields.items() if name not in own}


def _number(text: str) -> int:
    count, _, unit = text.partition(" ")
    return int(count.replace(",", "")) * {"": 1, "MiB": 2**20, "GiB": 2**30}[unit]


def test_files_that_the_container_copies_exist() -> None:
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (REPOSITORY / source).exists(), source
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    copied = {
        line.split()[1] for line in (DEPLOY / "Containerfile").read_text().splitlines() if line.startswith("COPY")
    }
    assert {root for root in project["where"] if root != "."} | {"omni"} <= copied


def test_the_container_leaves_out_files_that_the_build_does_not_need() -> None:
    """Environments have gigabytes, and compiled files are of another Python."""
    left_out = (REPOSITORY / ".dockerignore").read_text().split()
    assert {".git", ".venv*", "**/__pycache__"} <= set(left_out)
    text = (DEPLOY / "Containerfile").read_text()
    copied = {source for line in text.splitlines() if line.startswith("COPY") for source in line.split()[1:-1]}
    assert not [source for source in copied if any(fnmatch(source, pattern) for pattern in left_out)]


def test_the_container_takes_the_triton_that_torch_requires() -> None:
    """The tests' torch is the CPU's and requires none: they pin another version. Triton needs a compiler where it runs."""
    steps = re.split(r"RUN|&&", (DEPLOY / "Containerfile").read_text().replace("\\\n", " "))
    installs = [step for step in steps if "pip install" in step]
    assert ["versions.txt" in install for install in installs] == [True, True]
    assert any("grep -v '^triton==' constraints.txt > versions.txt" in step for step in steps)
    (packages,) = [step.split() for step in steps if "apt-get install" in step]
    assert {"gcc", "libc6-dev"} <= set(packages)


def test_paths_of_the_files_are_served() -> None:
    paths = {endpoint.path for endpoint in ENDPOINTS}
    assert "/metrics" in paths
    asked = re.findall(r"http://[\w.:]+(/[\w/]+)", (DEPLOY / "Containerfile").read_text())
    assert asked
    assert set(asked) <= paths


def _listed() -> dict[str, set[str]]:
    """Labels by name of the metrics in the page's table."""
    table = PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`(?:omni|process)_[^|]*) \|([^|]*)\|", table, re.M)
    return {
        name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.skipif(sys.platform != "linux", reason="those of the process are Linux's")
def test_the_page_lists_exactly_the_metrics_that_are_exported(metrics_text: str) -> None:
    listed, exported = _listed(), set(re.findall(r"^# TYPE (\S+) ", metrics_text, re.M))
    assert exported - listed.keys() == set()
    assert listed.keys() - exported == set()
    assert set(re.findall(r"\b(?:omni|process)_[a-z_]+\b", PAGE)) & exported == exported


def test_the_page_lists_the_labels_of_every_metric(exposed: dict[str, set[str]]) -> None:
    listed = _listed()
    for name, labels in exposed.items():
        family = re.sub(r"_(bucket|count|sum)$", "", name)
        # Without a sample a metric shows no labels.
        if labels:
            assert labels - {"le"} == listed[family], name


def test_every_file_is_on_the_page() -> None:
    for file in DEPLOY.iterdir():
        assert f"deploy/{file.name}" in PAGE, file.name


@pytest.mark.skipif(sys.platform != "linux", reason="needs systemd")
def test_the_systemd_unit_is_valid() -> None:
    if not Path("/usr/bin/systemd-analyze").exists():
        pytest.skip("needs systemd")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "omni.service")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    # The program and the key's file are not here.
    wrong = [line for line in done.stderr.splitlines() if "omni.service" in line and "is not executable" not in line]
    assert not [line for line in wrong if "Unknown" in line or "Failed to parse" in line], done.stderr


def test_the_oldest_versions_are_those_that_the_extra_allows() -> None:
    """`make oldest` tests the server with them."""
    lines = (REPOSITORY / "constraints.oldest.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    extra = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    assert {name: Version(version) for name, version in tested.items()} == {
        name: Version(version) for name, _, version in (each.partition(">=") for each in extra)
    }


def test_ci_runs_the_server_with_other_clients_and_the_oldest_versions() -> None:
    targets = re.search(r"for target in (.*); do", (REPOSITORY / ".ci" / "run").read_text())
    assert targets is not None
    assert {"browser", "clients", "oldest", "test"} <= set(targets[1].split())
    assert "run: .ci/run" in (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
