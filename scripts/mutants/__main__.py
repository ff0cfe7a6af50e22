"""`python -m mutants --help`, with `scripts` on PYTHONPATH; `make mutants` is that with the defaults."""

import argparse
import os
import sys
from pathlib import Path

# Read when they are imported: a child forked beside threads could hang.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import pytest

from .generate import Fault, faults_of, files_of, sample
from .report import print_report, read_equivalent
from .server import FaultServer, TimeLimits
from .verdicts import Verdicts, is_settled

FOLDERS = ["stages/omni_ar/run", "omni/device", "omni/engine", "stages/omni_frames", "omni/testing/simulation"]
# What they run needs a GPU, and a process that has one cannot be forked: `pytest -m gpu` is there for them.
WITHOUT = ["omni/device/cuda.py", "connectors/omni_cuda_ipc/connector.py"]
TESTS = ["tests/omni", "tests/connectors", "tests/stages", "tests/plugins"]
# Those marked `mutation` too: what they plant themselves is gone when they end.
MARKED = "not gpu and not slow"
# Kernels under an interpreter take long, and none of the code above stands in them.
IGNORED = ["tests/stages/omni_ar/kernels", "tests/stages/omni_encoder/kernels"]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def main() -> None:
    arguments = _parse()
    root = Path.cwd()
    folders = arguments.folder or FOLDERS
    by_folder = {
        folder: [fault for path in files_of(root, folder, WITHOUT) for fault in faults_of(root, path)]
        for folder in folders
    }
    everything = [fault for faults in by_folder.values() for fault in faults]
    equivalent = read_equivalent(arguments.equivalent)
    gone = equivalent.keys() - {fault.name for fault in everything} if not arguments.folder else set()
    for name in sorted(gone):
        print(f"{arguments.equivalent}: the code has no such fault any more: {name}")
    faults = sample(by_folder, arguments.count, arguments.seed, arguments.least_each)
    if arguments.only:
        faults = [fault for fault in everything if any(text in fault.name for text in arguments.only)]
    if arguments.list:
        print(*(fault.name for fault in faults), sep="\n")
        return
    print(f"{len(faults)} of {len(everything)} faults, seed {arguments.seed}", flush=True)
    verdicts = Verdicts(arguments.build / "verdicts.json")
    left = [fault for fault in faults if not (arguments.again and is_settled(fault, verdicts, equivalent))]
    _serve(arguments, root, folders, left, verdicts)
    if not arguments.record:
        share = print_report(folders, [verdict for fault in faults if (verdict := verdicts.of(fault))], equivalent)
        sys.exit(share < arguments.share)


def _serve(
    arguments: argparse.Namespace, root: Path, folders: list[str], faults: list[Fault], verdicts: Verdicts
) -> None:
    settings = TimeLimits(
        root, arguments.build, arguments.jobs, arguments.seconds, arguments.patience, arguments.record
    )
    paths = [path for folder in folders for path in files_of(root, folder, WITHOUT)]
    server = FaultServer(settings, paths, faults, verdicts)
    options = ["-q", "-s", "-m", MARKED, "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--no-summary"]
    options += [f"--ignore={path}" for path in IGNORED]
    code = pytest.main([*options, *(arguments.tests or TESTS)], plugins=[server, server.reports])
    if not server.ended:
        sys.exit(f"pytest ended with {code}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutants", description="Plants faults one at a time and counts those that tests catch."
    )
    parser.add_argument("--folder", action="append", help="a folder of code instead of the five; may be repeated")
    parser.add_argument("--tests", action="append", help="a file or folder of tests instead of all; may be repeated")
    parser.add_argument("--count", type=int, default=200, help="faults to draw (default: 200)")
    parser.add_argument("--least-each", type=int, default=16, help="faults of each folder at the least (default: 16)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument(
        "--only", action="append", help="instead of a draw, all faults with this text in their names; may be repeated"
    )
    parser.add_argument(
        "--again", action="store_true", help="leave out faults that an earlier run caught, and equivalent ones"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the faults and end")
    parser.add_argument(
        "--record", action="store_true", help="only record which test runs what, of files of tests that changed"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument(
        "--seconds", type=float, default=60, help="of tests that a fault may take, as recorded (default: 60)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds more than ten times its own that a test may take (default: 60)",
    )
    parser.add_argument("--share", type=float, default=0.97, help="caught share below which this fails (default: 0.97)")
    parser.add_argument("--build", type=Path, default=Path("build/mutants"), help="folder of the record and the report")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="file of faults that change nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
