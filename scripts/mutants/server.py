"""The process that has everything imported and all tests collected: pytest, whose loop forks a child for each fault."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .child import Reports, run_recorded, run_until_failure
from .children import ChildJob, ChildOutcome, Tell, run
from .generate import Fault, mutated
from .record import Marks, Record, Run
from .swap import Functions, find_functions, import_all, put
from .verdicts import Verdict, Verdicts

_BEGIN = 60.0
"""Seconds to parse, compile and plant, on a busy machine."""


@dataclass(frozen=True)
class TimeLimits:
    """`seconds` is the recorded time that tests of one fault may take together, `patience` that of a test that nobody recorded."""

    root: Path
    build: Path
    at_once: int
    seconds: float
    patience: float
    only_record: bool = False


@dataclass
class FaultServer:
    """Plugin: in place of running all tests, runs those of each fault."""

    settings: TimeLimits
    paths: list[str]
    faults: list[Fault]
    verdicts: Verdicts
    reports: Reports = field(default_factory=Reports)
    ended: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        _settle_hypothesis()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import_all(self.settings.root, self.paths)
        # As they are now: whoever changes a file meanwhile is not waited for.
        self._texts = {path: (self.settings.root / path).read_text() for path in self.paths}
        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # tests/conftest.py freezes what it has collected, and `find_functions` asks the collector
        self._functions: Functions = find_functions(self.settings.root, self.paths)
        self._record = Record(self.settings.build / "tests", self.settings.root, self.paths)
        self._unreliable: set[str] = set()
        gc.collect()
        gc.freeze()
        files = list(dict.fromkeys(item.nodeid.split("::")[0] for item in session.items))
        run((self._recording(file) for file in files if self._record.lacks(file)), self.settings.at_once)
        self._record.load(files)
        if not self.settings.only_record:
            run((self._hunt(Verdict(fault)) for fault in self.faults), self.settings.at_once)
        gc.unfreeze()
        self.ended = True
        return True

    def _recording(self, file: str) -> ChildJob:
        items = [item for item in self._items.values() if item.nodeid.split("::")[0] == file]
        return self._record_items(file, items, [])

    def _record_items(self, file: str, items: list[pytest.Item], before: list[Run]) -> ChildJob:
        """Records tests of a file, after those `before`. One that takes too long is left out."""

        def work(tell: Tell) -> None:
            marks = Marks(self._texts, self._functions)
            tell({"names": marks.names})
            run_recorded(items, self.reports, marks, tell)

        def then(outcome: ChildOutcome) -> Iterable[ChildJob]:
            runs = before + [Run(**said["run"]) for said in outcome.said if "run" in said]
            failed = [said["why"] for said in outcome.said if said.get("why")]
            begun = [said["runs"] for said in outcome.said if "runs" in said]
            left = items[len(begun) :]
            if begun and (outcome.hung or outcome.crashed):
                print(f"cannot be recorded: {begun[-1]}", flush=True)
            if begun and left:
                return [self._record_items(file, left, runs)]
            self._record.store(file, outcome.said[0]["names"], runs)
            print(f"recorded {len(runs)} tests of {file}", *failed, sep="\n    ", flush=True)
            return []

        return ChildJob(work, lambda test: self.settings.patience + _BEGIN, then)

    def _hunt(self, verdict: Verdict) -> ChildJob:
        items = self._chosen(verdict.fault)
        verdict.tests = len(items)

        def work(tell: Tell) -> None:
            self._plant(verdict.fault)
            tell({"planted": verdict.fault.name})
            run_until_failure(items, self.reports, tell)

        def then(outcome: ChildOutcome) -> Iterable[ChildJob]:
            if not outcome.said:
                raise RuntimeError(f"could not plant {verdict.fault.name}")
            last = outcome.said[-1]
            begun = [said["runs"] for said in outcome.said if "runs" in said]
            if "passed" in last:
                self.verdicts.add(verdict)
                print("survived", verdict.fault.name, f"{verdict.tests} tests pass", sep="\n    ", flush=True)
                return []
            if "failed" in last:
                return [self._check(verdict, [last["failed"]], f"{last['failed']} ({last['why']})")]
            why = f"{outcome.crashed} died" if outcome.hung is None else f"{outcome.hung} did not end"
            return [self._check(verdict, begun, why)]

        return ChildJob(work, self._limit, then)

    def _check(self, verdict: Verdict, tests: list[str], why: str) -> ChildJob:
        """The fault is caught if `tests` pass without it. A test that does not is unreliable: the hunt goes on without it."""

        def then(outcome: ChildOutcome) -> Iterable[ChildJob]:
            last = outcome.said[-1] if outcome.said else {}
            if "passed" in last:
                self._caught(verdict, why)
                return []
            unreliable = last.get("failed") or outcome.hung or outcome.crashed
            if not unreliable:
                raise RuntimeError(f"no test of {verdict.fault.name} began without the fault")
            print(f"fails, dies or does not end without a fault: {unreliable}", flush=True)
            self._unreliable.add(unreliable)
            return [self._hunt(verdict)]

        items = [self._items[test] for test in tests]
        return ChildJob(lambda tell: run_until_failure(items, self.reports, tell), self._limit, then)

    def _caught(self, verdict: Verdict, why: str) -> None:
        verdict.why = why
        self.verdicts.add(verdict)
        print("caught", verdict.fault.name, why, sep="\n    ", flush=True)

    def _chosen(self, fault: Fault) -> list[pytest.Item]:
        chosen, left = [], self.settings.seconds
        for test in self._record.tests(fault):
            if test in self._items and test not in self._unreliable and self._record.seconds(test) <= left:
                chosen.append(self._items[test])
                left -= self._record.seconds(test)
        return chosen

    def _plant(self, fault: Fault) -> None:
        changed = put(mutated(self._texts[fault.path], fault), fault.path, self._functions)
        if not any(f"{fault.function}.".startswith(f"{function.__qualname__}.") for function in changed):
            raise LookupError(f"{fault.function} is not in this process")

    def _limit(self, test: str) -> float:
        """Seconds; without a test, those until the first one begins."""
        return self.settings.patience + (10 * self._record.seconds(test) if test else _BEGIN)


def _settle_hypothesis() -> None:
    """Properties draw the same examples for every fault; the first that fails is enough."""
    import hypothesis

    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    default = hypothesis.settings()
    hypothesis.settings.register_profile(
        "mutants", default, derandomize=True, database=None, print_blob=False, phases=phases
    )
    hypothesis.settings.load_profile("mutants")
