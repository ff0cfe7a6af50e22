"""The engine's process is started before torch is imported in the user's, and imports the code of the model meanwhile."""

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni import AsyncOmni, CheckpointError, ConfigError, Omni
from omni.config import SettingsLayer
from omni.process import early
from omni.process.child import EngineProcess
from omni.process.imports import import_code
from tests.omni.process.engines import alive, children
from tests.support.echo_family import echo_model, eventually
from tests.support.entry_points import REPOSITORY, SOURCE_ROOTS
from tests.support.patience import PATIENCE_SECONDS
from tests.support.resources import open_files
from tests.support.tiers import SLOW, few

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
HEAVY = ("torch", "numpy", "transformers", "omni.engine", "omni.frontend")
OPEN = f"""
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from omni import AsyncOmni, Omni

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":  # is about to be imported
            tasks = Path("/proc/self/task").iterdir()
            print(sum(len((task / "children").read_text().split()) for task in tasks))

assert not sys.modules.keys() & {{*{HEAVY}}}
sys.meta_path.insert(0, Watch())
with Omni(sys.argv[1], device="cpu", overrides={{"engine.process": sys.argv[2]}}) as omni:
    print(omni.generate("fine", stream=False).text)
    print(*sorted(sys.modules.keys() & {{"jinja2", "transformers", "triton", "torchaudio", "torch._dynamo"}}))
"""
"""Prints the number of child processes before torch is imported, an answer, and modules that only some families need."""
RUN = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":  # is about to be imported
            tasks = Path("/proc/self/task").iterdir()
            print(sum(len((task / "children").read_text().split()) for task in tasks), flush=True)

sys.meta_path.insert(0, Watch())
from omni.cli import main
sys.argv[1:] = ["run", sys.argv[1], "fine", "--device", "cpu", "--set", f"engine.process={sys.argv[2]}"]
main()
"""
"""As `OPEN`, on the command line."""
ENDS = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from omni.process.child import EngineProcess
process = EngineProcess(sys.argv[1])
print(process.pid, flush=True)
input()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder of installed plugins: the echo family, and one whose pipeline writes the id of its process and ends never."""
    folder = tmp_path / "plugins"
    (folder / "early-1.dist-info").mkdir(parents=True)
    (folder / "early-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: early\nVersion: 1\n")
    points = "[omni]\necho = tests.support.echo_plugin\nearly = early_plugin\n"
    (folder / "early-1.dist-info" / "entry_points.txt").write_text(points)
    (folder / "early_plugin.py").write_text("""
from omni.hookspecs import hookimpl
from omni.plugin.entries import ModelFamily

@hookimpl
def omni_model_families():
    return [ModelFamily(name="early", model_types=("early",), pipeline="early_family:pipeline")]
""")
    (folder / "early_family.py").write_text(f"""
import os, threading
from pathlib import Path

def pipeline(checkpoint):
    Path({str(tmp_path / "pid.new")!r}).write_text(str(os.getpid()))
    os.rename({str(tmp_path / "pid.new")!r}, {str(tmp_path / "pid")!r})
    threading.Event().wait()
""")
    return folder


@pytest.fixture
def early_model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "early"}')
    return folder


@pytest.fixture
def installed(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(plugins)
    yield
    for name in ("early_plugin", "early_family"):
        sys.modules.pop(name, None)


def paths(plugins: Path) -> list[str]:
    return [str(plugins), str(REPOSITORY), *map(str, SOURCE_ROOTS)]


@pytest.mark.parametrize(("process", "started"), few(1, [("process", "1"), ("thread", "0")], SLOW))
def test_a_process_starts_before_torch_is_imported(tmp_path: Path, plugins: Path, process: str, started: str):
    command = [sys.executable, "-c", OPEN, str(echo_model(tmp_path)), process, *paths(plugins)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [started, "fine", ""]


@pytest.mark.parametrize(("process", "started"), few(1, [("process", "1"), ("thread", "0")], SLOW))
def test_commands_start_the_process_before_they_import_torch(tmp_path: Path, plugins: Path, process: str, started: str):
    command = [sys.executable, "-c", RUN, str(echo_model(tmp_path)), process, *paths(plugins)]
    limit = PATIENCE_SECONDS
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, cwd=tmp_path)
    assert done.stdout.splitlines() == [started, "fine"], done.stderr
    assert (tmp_path / "out.wav").exists()


def test_a_process_started_ahead_is_taken_once_or_ends(tmp_path: Path):
    files, processes = open_files(), children()
    model, layers = echo_model(tmp_path), [SettingsLayer("test", {"engine.process": "process"})]
    with early.engine_ahead(model, layers, None):
        (ahead,) = children() - processes
        other = early.start_early(model, layers, "another family")
        taken = early.start_early(model, layers, None)
        further = early.start_early(model, layers, None)
    assert taken is not None
    assert taken.pid == ahead
    for each in (other, taken, further):
        assert each is not None
        assert alive(each.pid)
        each.discard()
    assert len({each.pid for each in (other, taken, further) if each is not None}) == 3
    with pytest.raises(ConfigError), early.engine_ahead(model, layers, None):
        raise ConfigError("--out", "cannot be written", "give another")
    with early.engine_ahead(model, [SettingsLayer("test", {"engine.process": "thread"})], None):
        assert children() == processes
    gc.collect()
    assert (open_files(), children()) == (files, processes)


def test_the_process_imports_the_models_code_by_itself(installed: None, tmp_path: Path, early_model: Path):
    process = EngineProcess(str(early_model))
    assert eventually((tmp_path / "pid").exists)
    assert (tmp_path / "pid").read_text() == str(process.pid)
    process.discard()
    assert not alive(process.pid)
    process.discard()


def test_a_process_that_imports_ends_with_the_users(tmp_path: Path, early_model: Path, plugins: Path):
    command = [sys.executable, "-c", ENDS, str(early_model), *paths(plugins)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        assert eventually((tmp_path / "pid").exists)
        assert alive(pid)
        user.stdin.write("\n")
        user.stdin.flush()
        user.wait(PATIENCE_SECONDS)
    assert eventually(lambda: not alive(pid))


def test_imports_report_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    for content in (None, "{", '{"model_type": "nobody"}'):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        import_code(str(tmp_path))
        import_code(str(tmp_path), "nobody")
    assert not caplog.records
    logging.getLogger("omni").warning("shown again")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("opened", [Omni, AsyncOmni])
def test_a_start_that_fails_leaves_no_early_process(tmp_path: Path, opened: type[Omni] | type[AsyncOmni]):
    (tmp_path / "config.json").write_text('{"model_type": "nobody"}')
    gc.collect()
    files, processes = open_files(), children()
    process = {"engine.process": "process"}
    with pytest.raises(CheckpointError, match="no plugin serves"):
        opened(tmp_path, device="cpu", overrides=process)
    with pytest.raises(ConfigError, match=r"engine\.restarts"):
        opened(tmp_path, device="cpu", overrides={**process, "engine.restarts": -1})
    gc.collect()
    assert (open_files(), children()) == (files, processes)


def test_a_process_that_is_not_needed_ends(installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As of a computer with a CUDA device and a torch without CUDA."""
    processes, started = children(), []

    def start(model: str | None, family: str | None) -> EngineProcess:
        started.append(EngineProcess(model, family))
        return started[-1]

    monkeypatch.setattr(early, "_NVIDIA", Path("/"))
    monkeypatch.setattr(early, "EngineProcess", start)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with Omni(echo_model(tmp_path)) as omni:
        assert len(started) == 1
        assert children() == processes
        assert omni.generate("fine", stream=False).text == "fine"


@pytest.mark.parametrize(
    ("values", "nvidia", "wanted"),
    [
        ([{}], False, False),
        ([{}], True, True),
        ([{"engine.device": "cpu"}], True, False),
        ([{"engine.device": "cuda:1"}], False, True),
        ([{"engine": {"device": "cuda"}}], False, True),
        ([{"engine": {"device": "cuda", "process": "thread"}}], True, False),
        ([{"engine.process": "thread"}], True, False),
        ([{"engine.process": "process", "engine.device": "cpu"}], False, True),
        ([{"engine.process": "process"}, {"engine.process": "thread"}], True, False),
        ([{"engine.process": "thread"}, {"engine.process": "auto"}], True, True),
        ([{"engine.process": "elsewhere"}], True, False),
        ([{"other.process": "process"}], False, False),
    ],
)
def test_settings_decide_on_an_early_process(
    monkeypatch: pytest.MonkeyPatch, values: list[dict[str, object]], nvidia: bool, wanted: bool
):
    started: list[tuple[str | None, str | None]] = []
    monkeypatch.setattr(early, "_NVIDIA", Path("/") if nvidia else Path("/nothing"))
    monkeypatch.setattr(early, "EngineProcess", lambda *model: started.append(model))
    layers = [SettingsLayer("overrides", each) for each in values]
    early.start_early("no/folder", layers, "own")
    assert started == ([(None, "own")] if wanted else [])
    early.start_early(os.curdir, layers, None)
    assert started[1:] == ([(os.curdir, None)] if wanted else [])
