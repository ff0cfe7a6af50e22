"""Every phase of the repository has a category."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import omni.connector.pool  # noqa: F401
import omni_ar.kind  # noqa: F401
import omni_diffusion.kind
import omni_encoder.kind
import omni_vocoder.kind
from omni.device import PhaseCategory, category_of, declare_categories
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


def defined(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def handed_over(tree: ast.Module) -> Iterator[str]:
    """Names that stand where a phase stands: `launch(stream, phase, ...)`, `Launch.of(phase, ...)`, `send(copy, ...)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        match node.args:
            case [_, ast.Name(id=name), *_] if called.split(".")[-1] == "launch":
                yield name
            case [ast.Name(id=name), *_] if called == "Launch.of" or called.endswith("downloads.send"):
                yield name


def imported(tree: ast.Module) -> dict[str, str]:
    """Names that a module has from another, and where that one lies: a file without its suffix, or a folder."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module).replace(".", "/") for node in found for alias in node.names}


@cache
def phases(root: Path = REPOSITORY, roots: tuple[str, ...] = ROOTS) -> dict[str, set[str]]:
    """The files that define a phase of a name, from `root`."""
    paths = [path for name in roots for path in (root / name).rglob("*.py") if "testing" not in path.parts]
    trees = {str(path.relative_to(root)): ast.parse(path.read_text()) for path in paths}
    found: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for name in handed_over(tree):
            source = file.removesuffix(".py") if name in defined(tree) else imported(tree).get(name)
            # A name from nowhere is a parameter: whoever gave it is seen elsewhere.
            if source is not None:
                inside = (f"/{source}.", f"/{source}/")
                owners = {other for other in trees if any(place in f"/{other}" for place in inside)}
                found.setdefault(name, set()).update(owner for owner in owners if name in defined(trees[owner]))
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
def test_what_is_declared_is_there(stage: str):
    functions = set().union(*(defined(ast.parse(path.read_text())) for path in (REPOSITORY / stage).rglob("*.py")))
    assert set(DECLARED[stage]) - MOMENTS <= functions


def test_a_name_cannot_stand_for_two_categories():
    declare_categories({"test_only_phase": PhaseCategory.SCORES})
    declare_categories({"test_only_phase": PhaseCategory.SCORES})
    with pytest.raises(ValueError, match="give one of the two phases another name"):
        declare_categories({"test_only_phase": PhaseCategory.COPIES})
    assert category_of("test_only_phase") is PhaseCategory.SCORES
    assert category_of("nobody declared this") is PhaseCategory.OTHER
