"""What `omni new` writes: installed beside the wheel of omni, without the checkout, it passes its own tests at once.

These are the distributions in `examples/`. CI runs them with both ends of the range of transformers, as all tests.
"""

import shutil
from pathlib import Path

import pytest

from tests.installed.environment import build_wheel, install, omni, run
from tests.support.entry_points import REPOSITORY

pytestmark = pytest.mark.thorough
EXAMPLES = {"family": "pocket", "stage": "scorer", "connector": "inline", "processor": "variety"}
OWN_TESTS = """
import pytest
code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
package = sys.modules[{package!r}]
assert package.__file__.startswith({folder!r}), package.__file__
sys.exit(code)
"""


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_new_distribution_passes_its_own_tests(installed: Path, tmp_path: Path, kind: str) -> None:
    name = EXAMPLES[kind]
    assert "next:" in omni(installed, tmp_path, "new", kind, name, "--into", "made")
    made = tmp_path / "made" / f"omni-{name}"
    assert contents(made) == contents(REPOSITORY / "examples" / kind)
    (tests := tmp_path / "tests").mkdir()
    shutil.move(made / f"test_{name}.py", tests)  # so that the package beside it is not imported
    (out := tmp_path / "wheel").mkdir()
    own = install(build_wheel(made, out), tmp_path / "own")
    program = OWN_TESTS.format(package=f"omni_{name}", folder=f"{own}/")
    assert " passed" in run(program, [own, installed], tests, f"test_{name}.py")
