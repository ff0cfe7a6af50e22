"""Measures linear maps of a few rows, alone and with their norms and activations, against cuBLAS and separate kernels.

    python benchmarks/tune/linear.py --out stages/omni_ar/kernels/tuning/nvidia_h200/linear.json

Every candidate is checked against cuBLAS. Then it runs over copies of its weights that do not fit the L2 cache together, in one
CUDA graph. Times are medians of one call; calls of our kernels overlap, as they do in a model. `--quick` measures what the tables
give now, `--only 0.6B` the shapes of one model. Without `--streamed`, of the kernel that keeps weights in registers only the
settings in the tables are candidates.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import beside  # noqa: F401 - for `bench`
import msgspec
import torch
from agreement import distance, refuse_wrong
from linear_candidates import L2_BYTES, held_candidates, split_candidates, streamed_candidates, tiled_candidates
from torch import Tensor
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, output_file, positive_int
from bench.replay import H200_BANDWIDTH, replayed_seconds
from omni_ar.kernels import tuning
from omni_ar.kernels.linear import kernel, reference
from omni_ar.kernels.linear.settings import LinearSettings, TiledSettings, key, settings
from omni_ar.kernels.norm import add_rms_norm

EPS = 1e-6
# By model, outputs and inputs: queries, keys and values; after attention; gate and up; down; logits, routers and projections.
SHAPES: dict[str, dict[str, list[tuple[int, int]]]] = {
    "thinker": {"norm_linear": [(5120, 2048)], "linear": [(2048, 4096), (152_064, 2048), (128, 2048)]},
    "0.6B": {
        "norm_linear": [(4096, 1024), (2048, 1024)],
        "norm_gated": [(6144, 1024)],
        "linear": [(1024, 2048), (1024, 3072), (151_936, 1024), (3072, 1024), (2048, 1024)],
    },
    "talker": {
        "norm_linear": [(2560, 1024)],
        "gated": [(1536, 1024)],
        "linear": [(1024, 768), (128, 1024), (2048, 2048)],
    },
    "8B": {
        "norm_linear": [(6144, 4096)],
        "norm_gated": [(24_576, 4096)],
        "linear": [(4096, 4096), (4096, 12_288), (151_936, 4096)],
    },
    "csm-1b": {
        "norm_linear": [(3072, 2048), (1536, 1024), (2051, 1024)],
        "norm_gated": [(16_384, 2048), (16_384, 1024)],
        "linear": [(2048, 2048), (2048, 8192), (2051, 2048), (1024, 1024), (1024, 8192), (2051, 1024)],
    },
    "2.5-7b": {
        "norm_linear": [(4608, 3584), (2560, 896)],
        "norm_gated": [(37_888, 3584), (37_888, 896)],
        "linear": [
            *((3584, 3584), (3584, 18_944), (152_064, 3584)),
            *((896, 1536), (896, 18_944), (8448, 896), (896, 3584)),
        ],
    },
    "2.5-3b": {
        "norm_linear": [(2560, 2048), (1152, 896)],
        "norm_gated": [(22_016, 2048), (9728, 896)],
        "linear": [
            *((2048, 2048), (2048, 11_008), (151_936, 2048)),
            *((896, 896), (896, 4864), (8448, 896), (896, 2048)),
        ],
    },
}
# Their outputs go into a norm, which adds the parts of a split width up: from so many rows on they are measured with it.
INTO_NORM = {
    *((1024, 2048), (1024, 3072), (4096, 4096), (4096, 12_288)),
    *((2048, 8192), (1024, 1024), (1024, 8192), (3584, 3584), (3584, 18_944), (896, 1536), (896, 18_944)),
    *((2048, 11_008), (896, 896), (896, 4864)),
}
INTO_NORM_FROM = 8
# Few rows share their candidates: the best four for eight go on to fewer.
CLASSES = ((8, 4, 2, 1), (16,), (32,), (64,))
KEPT = 4

Job = tuple[str, int, int, int, LinearSettings]
Tables = dict[str, dict[int, LinearSettings | None]]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


class LinearCase:
    """One operation on `rows` rows, with as many copies of its weights as it takes for none to be cached."""

    def __init__(self, kind: str, outputs: int, width: int, rows: int) -> None:
        self.kind, self.rows = kind, rows
        self.bytes = 2 * outputs * width
        count = int(min(max(2, 3 * L2_BYTES // self.bytes), 64))
        self.weights = [draw(outputs, width) * width**-0.5 for _ in range(count)]
        self.x_TD, self.delta_TD, self.norm_D = draw(rows, width), draw(rows, width), draw(width)
        self.into_norm = kind == "linear" and (outputs, width) in INTO_NORM and rows >= INTO_NORM_FROM
        self.residual_TN, self.next_norm_N = draw(rows, outputs), draw(outputs)
        self.key = key(kind, self.weights[0])

    def run(self, config: LinearSettings | None, weight_ND: Tensor, product: LinearSettings | None = None) -> Tensor:
        """config: None for kernels of their own, or cuBLAS. product: settings of the product of its own, None for cuBLAS."""
        gated = self.kind.endswith("gated")
        if self.kind.startswith("norm"):
            if config is not None:
                parts = (self.x_TD, self.delta_TD, self.norm_D, EPS, weight_ND, None, gated)
                return kernel.norm_linear(*parts, config)[0]
            x_TD, _ = add_rms_norm(self.x_TD, self.delta_TD, self.norm_D, EPS, prefetch=weight_ND)
            return multiply(x_TD, weight_ND, gated, product)
        if not self.into_norm:
            return multiply(self.x_TD, weight_ND, gated, config)
        if isinstance(config, TiledSettings) and config.splits > 1:
            delta_TN = kernel.linear_parts(self.x_TD, weight_ND, config)
        else:
            delta_TN = multiply(self.x_TD, weight_ND, gated, config)
        return add_rms_norm(self.residual_TN, delta_TN, self.next_norm_N, EPS)[0]

    def seconds(self, config: LinearSettings | None, product: LinearSettings | None = None) -> float:
        """Seconds of one call; inf where the settings do not fit the device."""
        try:
            self.run(config, self.weights[0], product)
        except (TritonError, RuntimeError) as error:
            print(f"    refused: {config}: {str(error)[:100]}")
            return float("inf")
        if config is not None:
            refuse_wrong(self.wrong(config), config)
        calls = [partial(self.run, config, weight_ND, product) for weight_ND in self.weights]
        # There are two thousand candidates.
        return replayed_seconds(calls, replays=6, tidy=False)

    def wrong(self, config: LinearSettings) -> float:
        """Relative distance from cuBLAS."""
        return distance(self.run(config, self.weights[-1]), self.run(None, self.weights[-1]))


def multiply(x_TD: Tensor, weight_ND: Tensor, gated: bool, config: LinearSettings | None) -> Tensor:
    if config is None:
        return (reference.gated_linear if gated else reference.linear)(x_TD, weight_ND, None)
    return (kernel.gated_linear if gated else kernel.linear)(x_TD, weight_ND, None, config)


def compile_one(job: Job) -> None:
    """Fills the compiler's cache. Settings that do not fit the device are reported when they are timed."""
    with suppress(TritonError, RuntimeError):
        launch(job)


def launch(job: Job, *, device: str = "cuda", adds: bool = True) -> None:
    """adds: whether there is a residual addition before the norm."""
    kind, outputs, width, rows, config = job
    x_TD, delta_TD, norm_D, weight_ND = (
        torch.empty(*shape, dtype=torch.bfloat16, device=device)
        for shape in ((rows, width), (rows, width), (width,), (outputs, width))
    )
    if kind.startswith("norm"):
        delta = delta_TD if adds else None
        kernel.norm_linear(x_TD, delta, norm_D, EPS, weight_ND, None, kind.endswith("gated"), config)
    else:
        multiply(x_TD, weight_ND, kind == "gated", config)


def shown(config: LinearSettings) -> str:
    return " ".join(f"{value}" for value in msgspec.structs.astuple(config))


def show(case: LinearCase, library: float, apart: float, ours: float, config: LinearSettings | None) -> None:
    floor = case.bytes / H200_BANDWIDTH
    best = min(library, apart, ours)
    chosen = "" if config is None else shown(config)
    error = "" if config is None else f"error {case.wrong(config):.1e}"
    norm_apart = f"norm apart {apart * 1e6:7.2f}, " if apart < float("inf") else ""
    into_norm = ", into a norm" if case.into_norm else ""
    print(
        f"{case.key:40s} {case.rows:2d} rows{into_norm}: cuBLAS {library * 1e6:7.2f} us, {norm_apart}one kernel {ours * 1e6:7.2f}, "
        f"floor {floor * 1e6:6.2f}, {floor / best:4.0%}  {chosen}  {error}",
        flush=True,
    )


def shapes_of(models: Sequence[str]) -> list[tuple[str, int, int]]:
    """Every shape once, products alone before those with a norm, which may be put together from them."""
    shapes: dict[tuple[str, int, int], None] = {}
    for alone in (True, False):
        for model in models:
            for kind, listed in SHAPES[model].items():
                for shape in listed:
                    if alone:
                        shapes[(kind.replace("norm_", ""), *shape)] = None
                    elif kind.startswith("norm"):
                        shapes[(kind, *shape)] = None
    return list(shapes)


def candidates_of(shape: tuple[str, int, int], rows: int, sweep_streamed: bool) -> list[LinearSettings]:
    kind, outputs, width = shape
    found: list[LinearSettings] = list(tiled_candidates(*shape, rows))
    if kind == "linear":
        found += split_candidates(outputs, width, rows)
    if rows <= 32:
        found += held_candidates(*shape, rows)
    if rows == CLASSES[0][0]:
        if sweep_streamed:
            found += streamed_candidates(*shape)
        weight_ND = torch.empty(outputs, width, dtype=torch.bfloat16, device="cuda")
        known = (settings(kind, weight_ND[:count], weight_ND) for count in CLASSES[0])
        found += [config for config in known if config is not None and config not in found]
    return found


def tune(
    shapes: Sequence[tuple[str, int, int]],
    compiled: Callable[[Sequence[Job]], None],
    tables: Tables,
    sweep_streamed: bool,
    save: Callable[[Tables], None],
) -> None:
    """Writes the best settings for each number of rows into `tables`. save: is given them whenever there are more."""
    left = {(shape, counts): candidates_of(shape, counts[0], sweep_streamed) for shape in shapes for counts in CLASSES}
    began = time.monotonic()
    # What streams through registers is compiled for every number of rows, tiles only for their class.
    compiled(
        [
            (*shape, count, config)
            for (shape, counts), candidates in left.items()
            for config in candidates
            for count in (counts[:1] if isinstance(config, TiledSettings) else counts)
        ]
    )
    print(
        f"compiled {sum(len(candidates) for candidates in left.values())} candidates in {time.monotonic() - began:.0f} s"
    )
    for (shape, counts), candidates in left.items():
        for count in counts:
            candidates = measure(LinearCase(*shape, count), candidates, tables)
        torch.cuda.empty_cache()
        save(tables)
    print(f"done after {time.monotonic() - began:.0f} s")


def measure(case: LinearCase, candidates: Sequence[LinearSettings], tables: Tables) -> list[LinearSettings]:
    """The candidates that go on to fewer rows: the best tiles, and all that streams."""
    library = case.seconds(None)
    apart = float("inf")
    if case.kind.startswith("norm"):
        product = tables.get(case.key.removeprefix("norm_"), {}).get(case.rows)
        apart = library if product is None else case.seconds(None, product)
    times = [(case.seconds(config), config) for config in candidates]
    times.sort(key=lambda timed: timed[0])
    seconds, config = times[0] if times else (float("inf"), None)
    chosen = config if config is not None and seconds < min(library, apart) else None
    tables.setdefault(case.key, {})[case.rows] = chosen
    show(case, library, apart, seconds, config)
    tops = ", ".join(f"{second * 1e6:.2f} ({shown(other)})" for second, other in times[1:4])
    print(f"      then {tops}")
    return [c for _, c in times[:KEPT]] + [c for _, c in times[KEPT:] if not isinstance(c, TiledSettings)]


def show_tables(shapes: Sequence[tuple[str, int, int]]) -> None:
    for shape in shapes:
        for count in sorted(count for counts in CLASSES for count in counts):
            case = LinearCase(*shape, count)
            config = settings(case.kind, case.x_TD, case.weights[0])
            product = settings(case.kind.removeprefix("norm_"), case.x_TD, case.weights[0])
            library = case.seconds(None)
            apart = case.seconds(None, product) if case.kind.startswith("norm") else float("inf")
            show(case, library, apart, float("inf") if config is None else case.seconds(config), config)


def save_over_shipped(out: Path | None, tables: Tables) -> None:
    """Saves the measured settings; others remain as in the shipped table."""
    if out is None:
        return
    folder = torch.cuda.get_device_name().lower().replace(" ", "_")
    shipped = Path(tuning.__file__).parent / folder / "linear.json"
    whole = json.loads(shipped.read_text()) if shipped.exists() else {}
    whole |= {
        # No settings where cuBLAS is faster.
        name: {str(rows): msgspec.to_builtins(sizes[rows]) or {} for rows in sorted(sizes)}
        for name, sizes in tables.items()
    }
    out.write_text(json.dumps(whole, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=output_file, help="where to write the table, over what the shipped one has; none without it"
    )
    parser.add_argument("--quick", action="store_true", help="measure what the tables give now")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="the shapes of these models")
    parser.add_argument("--streamed", action="store_true", help="sweep the settings of the streaming kernel too")
    parser.add_argument("--processes", type=positive_int, default=14, help="that compile")
    arguments = parser.parse_args()
    need_cuda()
    shapes = shapes_of(arguments.only)
    if arguments.quick:
        show_tables(shapes)
        return
    tables: Tables = {}
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:

        def compiled(jobs: Sequence[Job]) -> None:
            for _ in pool.map(compile_one, jobs, chunksize=4):
                pass

        tune(shapes, compiled, tables, arguments.streamed, partial(save_over_shipped, arguments.out))


if __name__ == "__main__":
    main()
