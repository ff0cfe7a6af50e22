"""Who may import whom, and where no model may be named."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.entry_points import REPOSITORY, own_entry_points
from support.patience import PATIENCE_SECONDS

ROOTS = {"omni": REPOSITORY / "omni"} | {name: REPOSITORY / name for name in ("stages", "connectors", "plugins")}
OFFERED = {
    "omni_ar": {
        *("options", "generation_config", "inputs", "model", "layers", "loading", "processors"),
        *("adapters", "hidden_conditioning", "text_conditioning"),
    },
    "omni_diffusion": {"options", "inputs", "model", "layers"},
    "omni_encoder": {"options", "inputs", "model", "plan", "towers"},
    "omni_vocoder": {"options", "model", "state", "layers", "streaming"},
}
"""What plugins use of a kind: options, inputs, the model contract, what models are made of and read with, what feeds a stage. The
rest is kernels and what runs the stage."""
SHARED = "omni_frames"
"""What stage kinds that take code frames share: no kind itself."""
PLUGINS = [ROOTS["plugins"], REPOSITORY / "examples", REPOSITORY / "tests" / "examples" / "plain_tts"]
"""Those that authors copy keep to it as well."""
FAMILIES = [path.parent.name.removeprefix("omni_") for path in sorted((REPOSITORY / "plugins").glob("*/plugin.py"))]
# The family of any causal language model bears the name of what it writes; to mimic is a word.
NAMES = {*map(re.escape, FAMILIES), "qwen", "mimi(?!c)", "moshi", "bigvgan", "(?:code|token)2wav", "whisper", "encodec"}
MODELS = re.compile("|".join(sorted(NAMES - {"text"})), re.IGNORECASE)
TEXTS = {".py", ".json", ".md", ".toml", ".txt", ".cu", ".cpp", ".typed"}


def sources(root: str) -> list[Path]:
    return sorted(ROOTS[root].rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, anywhere in it. `from a import b` counts as `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_paths(path: Path) -> Iterator[str]:
    """The modules of `"module:attribute"` strings in a file, which import as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"(omni\w*(?:\.\w+)*):\w+", node.value)
            if named:
                yield named[1]


def own(module: str) -> str | None:
    """The package of this repository that a module belongs to, if any."""
    package = module.partition(".")[0]
    return package if package == "omni" or package.startswith("omni_") else None


def package_of(path: Path, root: str) -> str:
    return "omni" if root == "omni" else path.relative_to(ROOTS[root]).parts[0]


def allowed(root: str, package: str) -> set[str]:
    return {
        "omni": {"omni"},
        "stages": {"omni", package, SHARED},
        "connectors": {"omni", package},
        "plugins": {"omni", package, *OFFERED},
    }[root]


def offers(module: str) -> bool:
    """Whether a plugin may import a module of a stage kind, or anything of another package."""
    kind, _, inside = module.partition(".")
    return kind not in OFFERED or inside.partition(".")[0] in OFFERED[kind]


@pytest.mark.parametrize("root", ROOTS)
def test_arrows_point_one_way(root: str):
    files = sources(root)
    assert files
    for path in files:
        package = package_of(path, root)
        foreign = {module for module in imports(path) if own(module) not in (None, *allowed(root, package))}
        assert not foreign, f"{path.relative_to(REPOSITORY)} imports {', '.join(sorted(foreign))}"


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_plugins_use_building_blocks_and_never_kernels_or_runners(folder: Path):
    files = sorted(folder.rglob("*.py"))
    assert files
    for path in files:
        refused = [module for module in (*imports(path), *import_paths(path)) if not offers(module)]
        assert not refused, f"{path.relative_to(REPOSITORY)} imports {', '.join(refused)}"


@pytest.mark.parametrize("kind", OFFERED)
def test_what_is_offered_is_there_and_a_worker_is_not_offered(kind: str):
    modules = {path.stem for path in (ROOTS["stages"] / kind).iterdir()}
    assert OFFERED[kind] <= modules
    assert not any(offers(f"{kind}.{name}.Name") for name in ("kind", "loaded", "kernels", "run", "worker"))


def test_every_stage_kind_says_what_it_offers():
    assert {path.parent.name for path in ROOTS["stages"].glob("*/plugin.py")} == {*OFFERED}


def test_names_of_import_paths_keep_the_arrows_too():
    for root in ("omni", "stages", "connectors"):
        for path in sources(root):
            foreign = {
                module for module in import_paths(path) if own(module) not in allowed(root, package_of(path, root))
            }
            assert not foreign, f"{path.relative_to(REPOSITORY)} names {', '.join(sorted(foreign))}"


@pytest.mark.parametrize("root", ["omni", "stages", "connectors"])
def test_no_model_is_named_outside_its_plugin(root: str):
    """Neither in code nor in comments, data or names of files, and none is excepted."""
    files = [path for path in sorted(ROOTS[root].rglob("*")) if path.suffix in TEXTS and path.is_file()]
    assert {*sources(root)} <= {*files}
    for path in files:
        where = path.relative_to(REPOSITORY)
        named = MODELS.findall(f"{where}\n{path.read_text()}")
        assert not named, f"{where} names {', '.join(named)}"


@pytest.mark.parametrize("name", ["Qwen3", "omni_csm", "CSM-1B", "MimiModel", "BigVGAN", "qwen2_5_omni", "Code2Wav"])
def test_names_of_models_are_found_as_they_are_written(name: str):
    assert MODELS.search(f"as {name} has it")


@pytest.mark.parametrize("point", own_entry_points(), ids=lambda point: point.name)
def test_an_entry_module_imports_no_torch(point):
    program = f"import sys; import {point.value}; sys.exit('torch' in sys.modules)"
    path = [str(REPOSITORY), *(str(folder) for name, folder in ROOTS.items() if name != "omni")]
    environment = {"PYTHONPATH": ":".join(path)}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=environment, timeout=PATIENCE_SECONDS, check=False).returncode == 0
