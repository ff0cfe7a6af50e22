"""The allowed imports between packages, and the places where no model may be named."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.entry_points import REPOSITORY, own_entry_points
from tests.support.patience import PATIENCE_SECONDS

ROOTS = {"omni": REPOSITORY / "omni"} | {name: REPOSITORY / name for name in ("stages", "connectors", "plugins")}
OFFERED = {
    "omni_ar": {
        *("options", "generation_config", "inputs", "model", "layers", "attention", "processors", "drafters"),
        *("adapters", "hidden_conditioning", "text_conditioning"),
    },
    "omni_diffusion": {"options", "inputs", "model", "layers"},
    "omni_encoder": {"options", "inputs", "model", "plan", "segments", "layers", "towers"},
    "omni_vocoder": {"options", "model", "state", "layers", "streaming"},
}
"""The modules of a kind that plugins may use: options, inputs, the model contract, building blocks of models, adapters that feed a
stage. The others are kernels and the code that runs the stage."""
SHARED = "omni_frames"
"""What stage kinds that take code frames share: no kind itself."""
PLUGINS = [ROOTS["plugins"], REPOSITORY / "examples"]
"""Those that authors copy keep to it as well."""
FAMILIES = [path.parent.name.removeprefix("omni_") for path in sorted((REPOSITORY / "plugins").glob("*/plugin.py"))]
# The family of causal language models has the name of its output, text; "mimic" is a word.
NAMES = {*map(re.escape, FAMILIES), "qwen", "mimi(?!c)", "moshi", "bigvgan", "(?:code|token)2wav", "whisper", "encodec"}
MODELS = re.compile("|".join(sorted(NAMES - {"text"})), re.IGNORECASE)
TEXTS = {".py", ".json", ".md", ".toml", ".txt", ".cu", ".cpp", ".typed"}


LAZY = {
    "omni/__init__.py": "`import omni` starts without torch",
    "omni/api/__init__.py": "a model starts its engine's process before torch is imported",
    "omni/api/async_omni.py": "the same",
    "omni/api/omni.py": "the same",
    "omni/api/session.py": "the same",
    "omni/serve/__init__.py": "a process of encoders starts without torch",
    "omni/testing/__init__.py": "the second process of `check_connector` starts without the imports of engines",
    "omni/cli": "a command starts with the modules that it needs, and signals are handled before slow imports",
}
"""Where imports in functions and under `TYPE_CHECKING` are allowed, and why. Elsewhere they would hide a circle."""
KERNEL = re.compile(r"omni_\w+\.kernels\.\w+\.\w*kernel|omni\.parallel\.sum_kernel")
"""Kernels are imported where they run: they import triton, which torch for CPUs lacks."""
LEAVES = {
    "omni_ar/kernels": {"omni_ar.kernels"},
    "omni_ar/layers": {"omni_ar.attention", "omni_ar.kernels", "omni_ar.layers", "omni_ar.model"},
    "omni_ar/sampling": {"omni_ar.kernels", "omni_ar.processors", "omni_ar.sampling"},
    "omni_diffusion/kernels": {"omni_diffusion.kernels"},
    "omni_encoder/kernels": {"omni_encoder.kernels"},
    "omni_encoder/layers": {"omni_encoder.layers", "omni_encoder.segments"},
    "omni_vocoder/kernels": {"omni_vocoder.kernels"},
}
"""Folders of a kind that do not import the code that runs the stage, and the modules of their own kind that they import."""


def sources(root: str) -> list[Path]:
    return sorted(ROOTS[root].rglob("*.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules that a file imports, also in functions and under `TYPE_CHECKING`. `from a import b` counts as `a.b`."""
    return tuple(imports_below(ast.parse(path.read_text())))


def imports_below(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"write the import of {node.module} in full"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def late_imports(path: Path) -> tuple[str, ...]:
    """Modules of this repository that a file imports anywhere but at its top level."""
    statements = ast.parse(path.read_text()).body
    inside = (each for each in statements if not isinstance(each, ast.Import | ast.ImportFrom))
    return tuple(module for each in inside for module in imports_below(each) if own(module) is not None)


def below(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


@cache
def import_paths(path: Path) -> tuple[str, ...]:
    """The modules of `"module:attribute"` strings in a file, which import as well."""
    nodes = ast.walk(ast.parse(path.read_text()))
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return tuple(named[1] for text in strings if (named := re.fullmatch(r"(omni\w*(?:\.\w+)*):\w+", text)))


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
def test_offered_modules_exist_and_workers_are_not_offered(kind: str):
    modules = {path.stem for path in (ROOTS["stages"] / kind).iterdir()}
    assert OFFERED[kind] <= modules
    assert not any(offers(f"{kind}.{name}.Name") for name in ("kind", "loaded", "kernels", "run", "worker"))


@pytest.mark.parametrize("folder", ["omni/ipc", "omni/process", "omni/connector", "omni/engine", "connectors"])
def test_nothing_between_processes_is_pickled(folder: str):
    paths = sorted((REPOSITORY / folder).rglob("*.py"))
    assert paths
    for path in paths:
        pickling = [
            module for module in imports(path) if below(module, ("pickle", "multiprocessing", "torch.multiprocessing"))
        ]
        assert not pickling, f"{path} imports {pickling}"


def test_every_stage_kind_lists_its_offers():
    assert {path.parent.name for path in ROOTS["stages"].glob("*/plugin.py")} == {*OFFERED}


@pytest.mark.parametrize("folder", LEAVES)
def test_kernels_layers_and_sampling_know_nothing_of_the_run(folder: str):
    kind, files = folder.partition("/")[0], sorted((ROOTS["stages"] / folder).rglob("*.py"))
    assert files
    for path in files:
        name = path.relative_to(ROOTS["stages"]).as_posix()
        refused = [module for module in imports(path) if below(module, [kind]) and not below(module, LEAVES[folder])]
        assert not refused, f"{name} imports {', '.join(refused)}"


@pytest.mark.parametrize("root", ROOTS)
def test_no_import_hides_in_a_function_or_from_the_interpreter(root: str):
    for path in sources(root):
        name = path.relative_to(REPOSITORY)
        late = [module for module in late_imports(path) if not KERNEL.fullmatch(module)]
        assert not late or any(name.is_relative_to(place) for place in LAZY), f"{name} imports {', '.join(late)} late"


def test_every_reason_for_a_late_import_is_still_needed():
    late = [path.relative_to(REPOSITORY) for root in ROOTS for path in sources(root) if any(late_imports(path))]
    assert all(any(name.is_relative_to(place) for name in late) for place in LAZY)


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
