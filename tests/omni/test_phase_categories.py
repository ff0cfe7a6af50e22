"""Every phase of the repository has a category."""

import ast
import logging
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import omni.connector.pool
import omni.device.base
import omni_ar.kind  # noqa: F401
import omni_diffusion.kind
import omni_encoder.kind
import omni_vocoder.kind
from omni.device import PhaseCategory, category_of, declare_categories
from omni.errors import PluginError
from omni_ar.run.phases import CATEGORIES, HAND_OVER
from tests.support.entry_points import REPOSITORY

DECLARED = {
    "stages/omni_ar": CATEGORIES,
    "stages/omni_diffusion": omni_diffusion.kind.CATEGORIES,
    "stages/omni_encoder": omni_encoder.kind.CATEGORIES,
    "stages/omni_vocoder": omni_vocoder.kind.CATEGORIES,
}
"""By folder. Importing them declares."""
MOMENTS = {HAND_OVER}
"""Names that `Device.moment` reports, and no phase has."""
ROOTS = ("omni", "stages", "connectors", "plugins")
LAUNCHES = ("launch(", "Launch.of(", "downloads.send(")
"""Calls that `handed_over` reads."""


def defined(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def handed_over(tree: ast.Module) -> Iterator[str]:
    """Names that stand where a phase stands: `launch(stream, phase, ...)`, `Launch.of(phase, ...)`, `send(copy, ...)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="launch") | ast.Attribute(attr="launch"), args=[_, ast.Name(id=name), *_]):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id="Launch"), attr="of"), args=[ast.Name(id=name), *_]):
                yield name
            case ast.Call(func=ast.Attribute(attr="send") as called, args=[ast.Name(id=name), *_]):
                if ast.unparse(called).endswith("downloads.send"):
                    yield name


def imported(tree: ast.Module) -> dict[str, str]:
    """Names that a module has from another, and where that one lies: a file without its suffix, or a folder."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module).replace(".", "/") for node in found for alias in node.names}


@cache
def phases(root: Path = REPOSITORY, roots: tuple[str, ...] = ROOTS) -> dict[str, set[str]]:
    """The files that define a phase of a name, from `root`."""
    paths = [path for name in roots for path in (root / name).rglob("*.py") if "testing" not in path.parts]
    texts = {str(path.relative_to(root)): path.read_text() for path in paths}
    trees = cache(lambda file: ast.parse(texts[file]))
    found: dict[str, set[str]] = {}
    # To parse a file takes long, and most launch nothing.
    for file in (file for file, text in texts.items() if any(call in text for call in LAUNCHES)):
        tree = trees(file)
        for name in handed_over(tree):
            source = file.removesuffix(".py") if name in defined(tree) else imported(tree).get(name)
            # A name without a definition is a parameter: its argument is found at the caller.
            if source is not None:
                inside = (f"/{source}.", f"/{source}/")
                owners = {other for other in texts if any(place in f"/{other}" for place in inside)}
                found.setdefault(name, set()).update(owner for owner in owners if name in defined(trees(owner)))
    return {name: files for name, files in found.items() if files}


def shared(found: Mapping[str, set[str]]) -> set[str]:
    """Names that may stand for two things: of several phases, unless each is of another stage that says what it is for, in which
    case two that differ are refused where they are declared."""
    clashes = set()
    for name, files in found.items():
        stages = {
            stage
            for file in files
            for stage, categories in DECLARED.items()
            if file.startswith(stage) and name in categories
        }
        if len(files) > 1 and len(stages) < len(files):
            clashes.add(name)
    return clashes


def test_every_phase_has_a_category():
    found = phases()
    assert {"run_forward", "copy_scores", "decode_frames", "copy_upload", "gather_rows", "copy_extent"} <= set(found)
    assert {name for name in found if category_of(name) is PhaseCategory.OTHER} == set()


def test_no_name_is_two_phases():
    found = phases()
    assert len(found["set_null_rows"]) == 2, "two stages share a name, and each declares it"
    assert shared(found) == set()


def test_a_name_of_two_phases_is_found(tmp_path: Path):
    for module in ("loader", "copier"):
        text = "def move(x): ...\n\ndef work(device, stream):\n    device.launch(stream, move, 1)\n"
        (tmp_path / f"{module}.py").write_text(text)
    assert phases(tmp_path, (".",)) == {"move": {"loader.py", "copier.py"}}
    assert shared(phases(tmp_path, (".",))) == {"move"}


@pytest.mark.parametrize("stage", DECLARED)
def test_declared_phases_exist(stage: str):
    functions = set().union(*(defined(ast.parse(path.read_text())) for path in (REPOSITORY / stage).rglob("*.py")))
    assert set(DECLARED[stage]) - MOMENTS <= functions


def test_a_name_cannot_stand_for_two_categories():
    declare_categories({"test_only_phase": PhaseCategory.SCORES})
    declare_categories({"test_only_phase": PhaseCategory.SCORES})
    with pytest.raises(PluginError, match="give one of the two another name") as caught:
        declare_categories({"test_only_phase": PhaseCategory.COPIES})
    lines = [int(line) for line in re.findall(rf"\({re.escape(__file__)}:(\d+)\)", str(caught.value))]
    assert len(lines) == 2
    assert lines[0] > lines[1], "the second declaration is named first"
    assert category_of("test_only_phase") is PhaseCategory.SCORES
    assert category_of("nobody declared this") is PhaseCategory.OTHER


FOREIGN = """
from omni.device import PhaseCategory, declare_categories

declare_categories({NAME: PhaseCategory.COPIES})  # here
"""


def declares(folder: Path, phase: str) -> ModuleType:
    """A module of a plugin that is not omni's own, which declares a phase."""
    file = folder / "foreign_phases.py"
    file.write_text(FOREIGN.replace("NAME", repr(phase)))
    module = ModuleType("foreign_phases")
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    return module


def test_a_plugin_with_the_name_of_a_phase_of_omni_is_blamed(tmp_path: Path):
    with pytest.raises(PluginError) as caught:
        declares(tmp_path, "decode_frames")
    words = rf"phase 'decode_frames': is declared 'copies' \({tmp_path}/foreign_phases.py:4\), and already 'forward' "
    assert re.match(rf"{words}\(plugin .*omni_vocoder/kind.py:\d+\); rename the first", str(caught.value))
    assert category_of("decode_frames") is PhaseCategory.FORWARD


def test_a_plugin_that_declares_first_does_not_harm_omni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its module was imported before that of the stage kind, which other models need."""
    monkeypatch.setattr(omni.device.base, "_declared", {})
    declares(tmp_path, "decode_frames")
    with caplog.at_level(logging.WARNING, logger="omni.device"):
        exec(compile(KIND.read_text(), str(KIND), "exec"), {"__name__": "omni_vocoder.kind"})
    assert category_of("decode_frames") is PhaseCategory.FORWARD
    assert f"'copies' ({tmp_path}/foreign_phases.py:4), and 'forward' by omni: rename it there" in caplog.text


KIND = REPOSITORY / "stages/omni_vocoder/kind.py"
