"""Measures launch settings of the attention kernels and writes the best into tables.

    python benchmarks/tune/attention.py --out stages/omni_ar/kernels/tuning/nvidia_h200

Every candidate is checked against torch. Then it runs over the layers of a cache that is larger than the L2 cache, in one CUDA
graph, as a model's step does, with block tables as long as a captured step's. Times are medians per layer. `--quick` measures what
the tables and defaults give now.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from multiprocessing import get_context

import beside  # noqa: F401 - for `bench`
import msgspec
import torch
from agreement import distance, refuse_wrong
from torch import Tensor
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, output_folder
from bench.replay import H200_BANDWIDTH, replayed_seconds
from omni_ar.kernels.attention import reference
from omni_ar.kernels.attention.decode_kernel import decode_attention
from omni_ar.kernels.attention.prefill_kernel import prefill_attention
from omni_ar.kernels.attention.settings import (
    DecodeSettings,
    PrefillSettings,
    decode_settings,
    prefill_settings,
    shape_key,
)

COMPUTE = 790e12
BLOCK_SIZE, COLUMNS = 16, 512
# Query heads, key and value heads, head width.
SHAPES = {
    "Qwen3-0.6B": (16, 8, 128),
    "Qwen3-8B": (32, 8, 128),
    "thinker": (32, 4, 128),
    "talker": (16, 2, 128),
    "CSM-1B": (32, 8, 64),
    "Qwen2.5-Omni-7B": (28, 4, 128),
    "Qwen2.5-Omni-7B talker": (12, 4, 128),
    "Qwen2.5-Omni-3B talker": (14, 2, 64),
}
ROWS = (1, 2, 4, 8, 16, 32, 64)
LONG = ((1, 8192), (1, 32768), (8, 8192), (8, 32768))
PROMPTS = ((512,), (2048,), (512,) * 8)

Settings = DecodeSettings | PrefillSettings
Compiled = Callable[[Sequence[tuple[str, Settings]]], None]
Table = dict[str, dict[str, object]]

# Four programs of four warps fit a multiprocessor.
REGISTERS = 128
DECODE_TILES = [(64, 4, 1), (64, 4, 2), (64, 4, 3), (32, 4, 3), (32, 2, 2), (128, 4, 2), (128, 8, 2), (128, 8, 3)]
PREFILL_TILES = [
    *((128, 64, 8, stages) for stages in (2, 3, 4)),
    *((128, 128, 8, stages) for stages in (2, 3)),
    *((64, 64, 4, stages) for stages in (2, 3, 4)),
    *((64, 128, 4, stages) for stages in (2, 3)),
    *((128, 64, 4, stages) for stages in (2, 3)),
    (128, 32, 8, 4),
    (64, 32, 4, 4),
]


@dataclass
class AttentionCase:
    """Rows of given lengths in a cache of many layers. queries: tokens of each row; one is a decode."""

    heads: int
    kv_heads: int
    head_dim: int
    lengths: Sequence[int]
    queries: Sequence[int]

    def __post_init__(self) -> None:
        row_bytes = 2 * 2 * self.kv_heads * self.head_dim
        self.bytes = sum(self.lengths) * row_bytes
        layers = min(64, max(2, -(-200_000_000 // self.bytes)))
        blocks = [-(-length // BLOCK_SIZE) for length in self.lengths]
        count = 1 + sum(blocks)
        shape = (layers, count, BLOCK_SIZE, self.kv_heads, self.head_dim)
        self.key, self.value = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        order = iter((torch.randperm(count - 1) + 1).tolist())
        columns = max(COLUMNS, *blocks)
        table = [[next(order) for _ in range(used)] + [0] * (columns - used) for used in blocks]
        self.table_RM = torch.tensor(table, device="cuda")
        self.lengths_R = torch.tensor(self.lengths, device="cuda")
        self.q_THD = torch.randn(sum(self.queries), self.heads, self.head_dim, dtype=torch.bfloat16, device="cuda")
        self.out_THD = torch.empty_like(self.q_THD)
        starts = [sum(self.queries[:row]) for row in range(len(self.queries))]
        rows = zip(starts, self.queries, self.lengths, strict=True)
        self.rows_P4 = torch.tensor([[r, s, q, n - q] for r, (s, q, n) in enumerate(rows)], device="cuda")
        self.finished_splits = torch.zeros(8192, dtype=torch.int32, device="cuda")

    @property
    def floor(self) -> float:
        """Seconds that one layer takes at the rates the device was seen to reach."""
        pairs = sum(q * (n - q) + q * (q + 1) / 2 for q, n in zip(self.queries, self.lengths, strict=True))
        moved = self.bytes + 2 * 2 * self.q_THD.numel()
        return max(moved / H200_BANDWIDTH, 4 * pairs * self.heads * self.head_dim / COMPUTE)

    def run(self, settings: Settings, layer: int) -> None:
        key, value, q_THD, out_THD = self.key[layer], self.value[layer], self.q_THD, self.out_THD
        if isinstance(settings, DecodeSettings):
            decode_attention(q_THD, key, value, self.table_RM, self.lengths_R, self.finished_splits, settings, out_THD)
        else:
            prefill_attention(q_THD, key, value, self.table_RM, self.rows_P4, 0, settings, out_THD)

    def seconds(self, settings: Settings) -> float:
        """Seconds of one layer; inf where the settings do not fit the device."""
        layers = range(self.key.shape[0])
        try:
            self.run(settings, 0)
        except (TritonError, RuntimeError) as error:
            print(f"    refused: {settings}: {str(error)[:100]}")
            return float("inf")
        refuse_wrong(self.wrong(settings), settings)
        return replayed_seconds([partial(self.run, settings, layer) for layer in layers], replays=6)

    def wrong(self, settings: Settings) -> float:
        """Relative error in the last layer."""
        self.out_THD.fill_(float("nan"))
        self.run(settings, self.key.shape[0] - 1)
        return distance(self.out_THD, self.expected)

    @cached_property
    def expected(self) -> Tensor:
        """The result of the last layer, by plain torch in the same precision."""
        key, value = self.key[-1], self.value[-1]
        if max(self.queries) == 1:
            longest = max(self.lengths)
            return reference.decode_attention(self.q_THD, key, value, self.table_RM, self.lengths_R, longest)
        parts = [
            reference.prefill_attention(q, key, value, table_M, n - len(q))
            for q, table_M, n in zip(self.q_THD.split(list(self.queries)), self.table_RM, self.lengths, strict=True)
        ]
        return torch.cat(parts)


def decode_case(shape: str, rows: int, length: int | None = None) -> AttentionCase:
    """length: of every row; None draws it as it is between 512 and 768 generated tokens."""
    generator = torch.Generator().manual_seed(rows)
    lengths = [length or int(torch.randint(512, 769, (1,), generator=generator)) for _ in range(rows)]
    if rows == 1 and length is None:
        lengths = [768]
    return AttentionCase(*SHAPES[shape], lengths, [1] * rows)


def decode_candidates(case: AttentionCase, tiles: Sequence[tuple[int, int, int]]) -> list[DecodeSettings]:
    usual = decode_settings(case.q_THD, case.key[0]).splits
    wanted = sorted({max(1, usual >> shift) for shift in range(5)} | {min(64, 2 * usual)})
    return [
        DecodeSettings(block_n=n, splits=splits, fused=fused, num_warps=warps, num_stages=stages, registers=registers)
        for (n, warps, stages), splits, fused, registers in product(tiles, wanted, (True, False), (0, REGISTERS))
        if (splits > 1 or not fused) and (warps == 4 or not registers)
    ]


def compile_one(job: tuple[str, Settings]) -> None:
    """Fills the compiler's cache. Settings that do not fit the device are reported when they are timed."""
    shape, settings = job
    with suppress(TritonError, RuntimeError):
        AttentionCase(*SHAPES[shape], [32], [1]).run(settings, 0)


def show(name: str, case: AttentionCase, settings: Settings) -> None:
    seconds = case.seconds(settings)
    share, rate, error = case.floor / seconds, case.bytes / seconds / 1e12, case.wrong(settings)
    print(
        f"{name:32s} {seconds * 1e6:8.2f} us  floor {case.floor * 1e6:7.2f} us  {share:5.0%}  {rate:.2f} TB/s  "
        f"error {error:.1e}  {' '.join(str(value) for value in msgspec.structs.astuple(settings))}"
    )


def best_decode_tiles(compiled: Compiled) -> list[tuple[int, int, int]]:
    """The two tiles that do best on one shape, at each of some batch sizes: the others are not tried elsewhere."""
    cases = [decode_case("thinker", rows) for rows in (1, 8, 64)]
    tried = []
    for case in cases:
        splits = min(16, decode_settings(case.q_THD, case.key[0]).splits)
        some = [
            DecodeSettings(block_n=n, splits=splits, fused=True, num_warps=warps, num_stages=stages)
            for n, warps, stages in DECODE_TILES
        ]
        tried.append(some)
    compiled([("thinker", settings) for some in tried for settings in some])
    best: dict[tuple[int, int, int], None] = {}
    for case, some in zip(cases, tried, strict=True):
        times = [case.seconds(settings) for settings in some]
        for seconds, settings in zip(times, some, strict=True):
            print(f"  thinker, {len(case.lengths)} rows: {seconds * 1e6:7.2f} us  {settings}")
        ranked = sorted(zip(times, DECODE_TILES, strict=True))
        best.update(dict.fromkeys(tile for _, tile in ranked[:2]))
    return list(best)[:4]


def tune_decode(compiled: Compiled, shapes: Sequence[str]) -> Table:
    tiles = best_decode_tiles(compiled)
    print(f"tiles: {tiles}")
    cases = {at: decode_case(*at) for at in product(shapes, ROWS)}
    candidates = {at: decode_candidates(case, tiles) for at, case in cases.items()}
    compiled(sorted({(at[0], one) for at, some in candidates.items() for one in some}, key=str))
    table: Table = {}
    for at, case in cases.items():
        shape, rows = at
        times = [case.seconds(one) for one in candidates[at]]
        scores = [seconds / min(times) for seconds in times]
        if rows <= 8:
            # A captured step serves rows of every length: long ones have a say.
            long_case = decode_case(shape, rows, 8192)
            long = [long_case.seconds(one) for one in candidates[at]]
            scores = [score + 0.25 * seconds / min(long) for score, seconds in zip(scores, long, strict=True)]
        for fused in (True, False):
            name = "fused" if fused else "two kernels"
            some = [(seconds, one) for seconds, one in zip(times, candidates[at], strict=True) if one.fused == fused]
            for seconds, one in sorted(some, key=lambda pair: pair[0])[:2]:
                print(f"    {name}: {seconds * 1e6:.2f} us {one}")
        settings = candidates[at][scores.index(min(scores))]
        show(f"decode {shape}, {rows} rows", case, settings)
        table.setdefault(shape_key(case.q_THD, case.key[0]), {})[str(rows)] = msgspec.to_builtins(settings)
    return table


def tune_prefill(compiled: Compiled, shapes: Sequence[str]) -> Table:
    tiles = [PrefillSettings(block_m=m, block_n=n, num_warps=w, num_stages=s) for m, n, w, s in PREFILL_TILES]
    compiled([(shape, one) for shape in shapes for one in tiles])
    table: Table = {}
    for shape, prompts in product(shapes, PROMPTS):
        case = AttentionCase(*SHAPES[shape], prompts, prompts)
        times = [(case.seconds(one), one) for one in tiles]
        if shape == "thinker":
            for seconds, one in sorted(times, key=lambda pair: pair[0]):
                print(f"    {seconds * 1e6:8.2f} us {one}")
        settings = min(times, key=lambda pair: pair[0])[1]
        show(f"prefill {shape}, {len(prompts)} x {prompts[0]}", case, settings)
        table.setdefault(shape_key(case.q_THD, case.key[0]), {})[str(sum(prompts))] = msgspec.to_builtins(settings)
    return table


def measure(shapes: Sequence[str]) -> None:
    """Measures the present settings."""
    for shape, (rows, length) in product(shapes, [*((rows, None) for rows in ROWS), *LONG]):
        case = decode_case(shape, rows, length)
        show(f"decode {shape}, {rows} x {length or '512-768'}", case, decode_settings(case.q_THD, case.key[0]))
    for shape, prompts in product(shapes, (*PROMPTS, (64,), (2048,) * 4)):
        case = AttentionCase(*SHAPES[shape], prompts, prompts)
        settings = prefill_settings(sum(prompts), case.q_THD, case.key[0])
        show(f"prefill {shape}, {len(prompts)} x {prompts[0]}", case, settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=output_folder, help="folder that the tables are written to")
    parser.add_argument("--quick", action="store_true", help="measure the settings in use, and change nothing")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="these models")
    arguments = parser.parse_args()
    need_cuda()
    begin = time.monotonic()
    if arguments.quick or arguments.out is None:
        measure(arguments.only)
        return
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:

        def compiled(jobs: Sequence[tuple[str, Settings]]) -> None:
            list(pool.map(compile_one, jobs))
            print(f"compiled {len(jobs)} at {time.monotonic() - begin:.0f} s")

        tables = {
            "attention_prefill": tune_prefill(compiled, arguments.only),
            "attention_decode": tune_decode(compiled, arguments.only),
        }
    for name, table in tables.items():
        path = arguments.out / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | table, indent=1) + "\n")
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
