"""The start of a model, from the command to the first request it takes: with empty caches, and again with those that it has left.

    python benchmarks/start.py --shape qwen3-omni-30b
    python benchmarks/start.py --model DIR --starts 3

Each start is a process of its own. The first has empty folders as caches of Triton and of CUDA; each later one has those of the
start before. Python's bytecode is that of the installation, and is written where it may be, whatever PYTHONDONTWRITEBYTECODE says:
code without any is compiled by every start.

Files of weights (`--model`) are in the page cache from the second start on, and before the first if they were just
written: a shape has random weights, made on the device. Seconds of a row:

- imports: Python's start and `from omni import Omni`, which imports no torch.
- other: imports of torch, omni and the model's code, by both processes at the same time; settings, front end, and whatever no other
  column has.
- load: weights; kernels are compiled meanwhile. compile: the wait for kernels after that.
- measure, capture: the largest steps, and the captures of the start.
- first text, first audio: of a request that is sent at once, from then on. It makes the captures of its own sizes.

Kernels are variants: known from an earlier start, compiled in processes, and late: compiled by the engine itself, one after the
other, because they were not expected. With several engines a row has the slowest of each part.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.arguments import device_here, output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from bench.settings import add_settings, overrides_of
from shapes import SHAPES

_BENCHMARKS = Path(__file__).parent
_PARTS = ("load", "compile", "measure", "capture")
_KERNELS = ("known", "compiled", "late")
_FIRST = ("text", "audio")


def measure(given: Mapping[str, Any], caches: Path) -> dict[str, Any]:
    """One start. given: arguments of `Omni`."""
    environ = os.environ | {
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUDA_CACHE_PATH": str(caches / "cuda"),
        "PYTHONPATH": os.pathsep.join([str(_BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", "from bench.opened import main; main()", json.dumps(given)]
    done = subprocess.run([*command, str(time.monotonic())], env=environ, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the start failed with status {done.returncode}")
    return numbers_of(json.loads(done.stdout.splitlines()[-1]))


def numbers_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a start."""
    engines = list(found["engines"].values())
    parts = {name: max(engine[f"{name}_seconds"] for engine in engines) for name in _PARTS}
    kernels = {name: sum(engine[f"kernels_{name}"] for engine in engines) for name in _KERNELS}
    imports = found["python"] + found["imports"]
    other = found["open"] - sum(parts.values())
    first = {f"first {name}": found["first"].get(name, math.nan) for name in _FIRST}
    return {"total": found["total"], "imports": imports, "other": other, **parts, **first, **kernels}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shape", choices=SHAPES, default="qwen3-omni-30b", help="of random weights")
    what.add_argument("--model", type=Path, help="a folder with its weights")
    parser.add_argument("--starts", type=positive_int, default=2, help="the first with empty caches")
    parser.add_argument("--device", type=device_here("--shape tiny-omni --device cpu"), default="cuda")
    add_settings(parser)
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args(argv)
    overrides = overrides_of(arguments.set)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model, load_format = arguments.model, "auto"
        if model is None:
            model, load_format = Path(folder) / "model", "dummy"
            SHAPES[arguments.shape](model)
        given = {"model": str(model), "load_format": load_format, "device": arguments.device, "overrides": overrides}
        for start in range(arguments.starts):
            numbers = measure(given, Path(folder) / "caches")
            rows.append({"caches": "as left" if start else "empty", **numbers})
    header = (
        "caches",
        "total s",
        "imports",
        "other",
        *_PARTS,
        "first text",
        "first audio",
        *(f"kernels {name}" for name in _KERNELS),
    )
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    print_table(header, cells)
    facts = environment() | {"model": str(arguments.model or arguments.shape), "settings": " ".join(arguments.set)}
    print_facts(facts)
    write_json(arguments.json, rows, facts)


if __name__ == "__main__":
    main()
