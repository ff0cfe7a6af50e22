"""Statements and seconds of each test, recorded once for each file of tests and kept in `build/mutants`."""

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from .generate import Fault, header, sites
from .swap import Functions, put

HIT = "__hit__"
_DOTTED = re.compile(r"\w+(\.\w+)+(:\w+)?")


@dataclass(frozen=True)
class Run:
    """One test: seconds that it took, those before its body apart, whether it passed, and the statements that it ran."""

    test: str
    seconds: float
    setup: float
    passed: bool
    statements: list[int]


class Marks:
    """Functions whose statements mark that they were run. `names` is what each mark stands for."""

    def __init__(self, texts: Mapping[str, str], functions: Functions) -> None:
        """texts: of files, by path."""
        self.names: list[str] = []
        self._run = bytearray(1 << 20)
        for path, text in texts.items():
            tree = ast.parse(text)
            for site in reversed(list(sites(tree))):
                if isinstance(site.node, ast.stmt) and site.at is not None:
                    mark = ast.parse(f"{HIT}[{len(self.names)}] = 1").body[0]
                    self.names.append(statement_name(path, site.function, header(site.node)))
                    site.insert(ast.fix_missing_locations(ast.copy_location(mark, site.node)))
            for function in put(tree, path, functions):
                function.__globals__[HIT] = self._run

    def clear(self) -> None:
        self._run[:] = bytes(len(self._run))

    def take(self) -> list[int]:
        return [at for at in range(len(self.names)) if self._run[at]]


class Record:
    """The records of each file of tests, in `folder`. paths: files whose statements are recorded."""

    def __init__(self, folder: Path, root: Path, paths: Iterable[str]) -> None:
        self._folder, self._root = folder, root
        self._paths = set(paths)
        self._runs: dict[str, Run] = {}
        self._by_statement: dict[str, list[str]] = {}
        self._by_function: dict[str, set[str]] = {}

    def lacks(self, test_file: str) -> bool:
        """Whether the record of `test_file` is missing, of another version, or without some of the paths."""
        kept = self._kept(test_file)
        if not kept.exists():
            return True
        known = json.loads(kept.read_text())
        return known["digest"] != self._digest(test_file) or not self._paths <= set(known.get("paths", ()))

    def store(self, test_file: str, names: list[str], runs: list[Run]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        used = sorted({at for run in runs for at in run.statements})
        place = {at: new for new, at in enumerate(used)}
        runs = [replace(run, statements=[place[at] for at in run.statements]) for run in runs]
        known = {
            "digest": self._digest(test_file),
            "paths": sorted(self._paths),
            "names": [names[at] for at in used],
            "runs": [asdict(run) for run in runs],
        }
        part = self._kept(test_file).with_suffix(".part")
        part.write_text(json.dumps(known))
        part.replace(self._kept(test_file))

    def load(self, test_files: Iterable[str]) -> None:
        for test_file in test_files:
            if not self.lacks(test_file):
                known = json.loads(self._kept(test_file).read_text())
                runs = [Run(**run) for run in known["runs"]]
                costly = max((run.setup for run in runs), default=0.0)
                for run in runs:
                    self._add(run, known["names"], costly)

    def tests(self, fault: Fault) -> list[str]:
        """Tests that run the faulty statement, or its function if no test is known to; cheap ones first, no two alike in a row."""
        function = statement_name(fault.path, fault.function, "")
        known = self._by_statement.get(statement_name(fault.path, fault.function, fault.statement))
        tests = sorted(known if known is not None else self._by_function.get(function, ()), key=self.seconds)
        nth: dict[str, int] = {}
        ranks = {}
        for test in tests:
            alike = test.split("[")[0]
            nth[alike] = nth.get(alike, 0) + 1
            ranks[test] = (nth[alike] - 1, self.seconds(test))
        return sorted(tests, key=lambda test: ranks[test])

    def seconds(self, test: str) -> float:
        run = self._runs[test]
        return run.seconds + run.setup

    def _add(self, run: Run, names: list[str], costly: float) -> None:
        """Alone, each test may have to make what the first test of its file made for all of them."""
        if run.passed:
            self._runs[run.test] = Run(run.test, run.seconds, costly, True, [])
            for name in {names[at] for at in run.statements}:
                self._by_statement.setdefault(name, []).append(run.test)
                self._by_function.setdefault(name.split(": ", 1)[0] + ": ", set()).add(run.test)

    def _kept(self, test_file: str) -> Path:
        return self._folder / (test_file.replace("/", "-") + ".json")

    def _digest(self, test_file: str) -> str:
        """Digest of the file and of the test code that it imports or names, directly or not."""
        files, left = set[Path](), [self._root / test_file]
        while left:
            if (file := left.pop()) not in files:
                files.add(file)
                left += _helpers(file, self._root)
        digest = hashlib.sha256()
        for file in sorted(files):
            digest.update(file.read_bytes())
        return digest.hexdigest()


@cache
def _helpers(file: Path, root: Path) -> list[Path]:
    """The files below `tests` that `file` imports, or names in a string as entry points do."""
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                names.add(module)
                names.update(f"{module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
                names.add(text.split(":")[0])
    tests = root / "tests"
    paths = [top / f"{name.replace('.', '/')}.py" for name in sorted(names) for top in (root, tests)]
    return [path for path in paths if path.is_relative_to(tests) and path.is_file()]


def statement_name(path: str, function: str, text: str) -> str:
    return f"{path} {function}: {text}"
