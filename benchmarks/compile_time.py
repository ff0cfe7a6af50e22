"""Seconds that each kernel of a start takes to compile for an H200, without a GPU.

    python benchmarks/compile_time.py --shape qwen3-omni-30b [--rows 128] [--processes 2] [--json FILE]

As at a start with empty caches, the stages of a shape are built without contents, and the kernels that they launch are recorded
(`omni.kernels`). Then processes compile these variants, none of which is cached. Per kernel: its variants, the sum of their
seconds, and the longest one. Seconds are CPU time, ptxas included. A start with many cores takes at least as long as the longest
variant, one with few the sum divided by the cores. `--rows` is for stages whose rows follow from the memory of a device.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

from bench.arguments import output_file, positive_int
from bench.report import environment, print_facts, print_table, write_json
from omni.engine import PipelineChoice, load_stages, open_checkpoint, resolve_pipeline, warm
from omni.kernels import RecordingDevice, Variant, VariantRecorder
from omni.kernels.compiler import compile_for, compile_variant
from omni.plugin.manager import load_plugins
from omni.stage import Listeners, RowStage
from shapes import SHAPES

CAPABILITY = 90
_CUDA = torch.device("cuda", 0)
_H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds. longest: of a variant, whose compile-time constants follow."""

    kernel: str
    variants: int
    seconds: float
    longest: float
    constants: str


@contextmanager
def pretended_h200() -> Iterator[None]:
    """While entered, torch describes an H200 to those who ask for the properties of a CUDA device."""
    with (
        patch.object(torch.cuda, "get_device_properties", lambda device=None: _H200),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: (_H200.major, _H200.minor)),
    ):
        yield


def record(folder: Path, rows: int) -> tuple[list[Variant], float]:
    """The variants that a start of the model in a folder launches, and the seconds of recording them."""
    plugins = load_plugins()
    checkpoint = open_checkpoint(folder, plugins)
    plan = resolve_pipeline(checkpoint, plugins, [], PipelineChoice())
    recorder, seconds = VariantRecorder(), 0.0
    device = RecordingDevice(_CUDA, recorder)
    with pretended_h200():
        for stage in plan.pipeline.stages:
            loaded = load_stages(
                plan,
                checkpoint,
                device,
                dtype="bfloat16",
                load_format="dummy",
                graphs=True,
                stages=(stage.name,),
                listeners=Listeners(),
            )
            one = loaded[stage.name]
            if isinstance(one, RowStage) and one.chosen_rows is None:
                one.set_rows(rows)
            before = time.process_time()
            whole = warm.record_stages(loaded, device, None)
            seconds += time.process_time() - before
            if not whole:
                raise SystemExit(
                    f"the kernels of {stage.name} were recorded in part; omni logs the cause at debug level"
                )
    return list(recorder.variants), seconds


def seconds_of(variant: Variant) -> float:
    """CPU time of a compilation, in this process and those that it starts."""
    before = cpu_seconds()
    compile_variant(variant)
    return cpu_seconds() - before


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def by_kernel(variants: Sequence[Variant], seconds: Sequence[float]) -> list[KernelTime]:
    """Those with the longest variant first."""
    found = defaultdict[str, list[tuple[float, Variant]]](list)
    for variant, took in zip(variants, seconds, strict=True):
        found[variant.kernel].append((took, variant))
    times = []
    for kernel, several in found.items():
        longest, variant = max(several, key=lambda each: each[0])
        constants = {name: value for name, value in variant.arguments if name.isupper()}
        shown = " ".join(f"{name}={value}" for name, value in constants.items())
        times.append(KernelTime(kernel, len(several), sum(took for took, _ in several), longest, shown))
    return sorted(times, key=lambda one: -one.longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-omni-30b")
    parser.add_argument("--rows", type=positive_int, default=128)
    parser.add_argument("--processes", type=positive_int, default=os.cpu_count())
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        parser.error("TRITON_INTERPRET is set: Triton would interpret kernels instead of compiling them; unset it")
    with tempfile.TemporaryDirectory() as model, tempfile.TemporaryDirectory() as cache:
        SHAPES[arguments.shape](Path(model))
        variants, recorded = record(Path(model), arguments.rows)
        os.environ["TRITON_CACHE_DIR"] = cache
        # Forked, so that each has imported what it needs.
        with multiprocessing.get_context("fork").Pool(arguments.processes, compile_for, (CAPABILITY,)) as pool:
            seconds = pool.map(seconds_of, variants, chunksize=1)
    times = by_kernel(variants, seconds)
    facts = environment() | {"shape": arguments.shape, "rows": arguments.rows}
    print_facts(facts)
    longest = max(seconds, default=0.0)
    print(
        f"{len(variants)} variants: recorded in {recorded:.1f} s, compiled in {sum(seconds):.0f} s, one {longest:.1f} s"
    )
    rows = [
        (one.kernel.rpartition(".")[2], f"{one.variants}", f"{one.seconds:.1f}", f"{one.longest:.1f}", one.constants)
        for one in times
    ]
    print_table(("kernel", "variants", "seconds", "longest", "its constants"), rows)
    if arguments.json is not None:
        write_json(arguments.json, list(map(asdict, times)), facts)


if __name__ == "__main__":
    main()
