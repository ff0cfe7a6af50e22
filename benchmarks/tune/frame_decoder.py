"""Measures all passes of a frame in one kernel, against the passes apart.

    python benchmarks/tune/frame_decoder.py --out stages/omni_ar/kernels/tuning/nvidia_h200/frame_decoder.json
    python benchmarks/tune/frame_decoder.py --quick

Frames of the released shapes, drawn, each in a CUDA graph; medians of one frame, next to the time that its weights take to be read.
Every candidate must draw the codes of the first group that the passes apart draw, but for some that rounding moves. A shape and
number of rows gets settings only where they are faster. `--quick` measures what the table gives now. `--settings` measures one
candidate, a JSON object, instead of the list. All candidates are compiled first, on all cores.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import beside  # noqa: F401 - for `bench`
import msgspec
import torch
from agreement import refuse_wrong
from compile_ahead import compile_ahead
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, output_file, positive_int
from bench.frame_cases import SHAPES, FrameDecoder, frames
from bench.replay import H200_BANDWIDTH, replayed_seconds
from omni_ar.kernels import tuning
from omni_ar.kernels.frame_decoder import AddressTable, FrameSettings, FrameShape, kernel, key
from omni_ar.kernels.frame_decoder.settings import OPERATION

ROWS = (1, 8, 16, 32)
# As many as the device of the tables has multiprocessors: compiled ahead, a kernel knows no device.
PROGRAMS = 132
# Tiles of qkv, out, gate_up, down, head; tile_d, slices, whether the rows are left, warps.
TILES = (
    (32, 8, 8, 8, 16, 256, 8, True, 8),
    (32, 8, 8, 8, 16, 512, 8, True, 8),
    (16, 8, 8, 8, 16, 512, 8, True, 8),
    (32, 8, 16, 8, 16, 256, 4, True, 8),
    (32, 8, 8, 8, 16, 512, 8, True, 16),
    (32, 16, 8, 16, 16, 256, 8, False, 8),
    (32, 16, 16, 16, 16, 512, 8, False, 16),
)
# Codes of the first group that rounding may move: the largest share.
MOVED = 1 / 8


def candidates() -> Iterator[FrameSettings]:
    for qkv, out, gate_up, down, head, tile_d, slices, left, warps in TILES:
        yield FrameSettings(
            qkv=qkv, out=out, gate_up=gate_up, down=down, head=head, project=out, tile_d=tile_d, slices=slices,
            rows_left=left, num_warps=warps, programs=PROGRAMS,
        )  # fmt: skip


def launches(shape: FrameShape, rows: Sequence[int], given: Sequence[FrameSettings]) -> Iterator[Callable[[], object]]:
    """A frame of every candidate, on the CPU, without weights."""
    cpu = torch.device("cpu")
    for count in rows:
        first_TD, sum_RE, draws = frames(shape, count, cpu)
        positions = torch.zeros(2, shape.groups, shape.head_dim, dtype=torch.bfloat16)
        table = AddressTable.__new__(AddressTable)
        table.table, table.counter = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
        wanted = None if shape.projects else sum_RE
        fixed = (first_TD, wanted, (positions[0], positions[1]), shape, table, 1e-6, draws)
        yield from (partial(kernel.decode_frames, *fixed, settings) for settings in given)


def measure(
    name: str, rows: Sequence[int], given: Sequence[FrameSettings], quick: bool
) -> dict[str, dict[str, object]]:
    """Prints times, and returns the settings of the rows for which one kernel is faster."""
    shape, device = SHAPES[name], torch.device("cuda")
    decoder = FrameDecoder(shape, device)
    kept = key(shape, torch.bfloat16)
    print(f"{name}: floor {decoder.bytes / H200_BANDWIDTH * 1e6:.0f} us")
    found: dict[str, object] = {}
    for count in rows:
        asked = frames(shape, count, device)

        def seconds(settings: FrameSettings | None, asked: tuple[object, ...] = asked, count: int = count) -> float:
            """None: passes apart."""
            tuning.replace(OPERATION, kept, {count: msgspec.to_builtins(settings) if settings else {}})
            return replayed_seconds([partial(decoder.predict, *asked)])  # type: ignore[arg-type]

        apart = seconds(None)
        expected_RG = decoder.predict(*asked)
        print(f"  {count:3d} rows: {apart * 1e6:8.1f} us apart")
        if quick:
            tuning.replace(OPERATION, kept, None)
            print(f"            {replayed_seconds([partial(decoder.predict, *asked)]) * 1e6:8.1f} us by the table")
            continue
        best = apart
        for settings in given:
            try:
                time = seconds(settings)
            except (TritonError, RuntimeError) as error:  # of shared memory; of the compiler
                print(f"            {settings}: {error}")
                continue
            differ = (decoder.predict(*asked)[:, 0] != expected_RG[:, 0]).sum().item()
            refuse_wrong(max(differ - 1, 0) / count, settings, most=MOVED)
            print(f"            {time * 1e6:8.1f} us  {msgspec.to_builtins(settings)}", flush=True)
            if time < best:
                best, found[str(count)] = time, msgspec.to_builtins(settings)
    tuning.replace(OPERATION, kept, None)
    return {kept: found} if found else {}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="default: all")
    parser.add_argument("--rows", type=positive_int, nargs="+", default=ROWS)
    parser.add_argument("--settings", help="one candidate, as in the table")
    parser.add_argument("--quick", action="store_true", help="measure the table only")
    parser.add_argument("--out", type=output_file)
    options = parser.parse_args()
    need_cuda()
    given = list(candidates())
    if options.settings:
        given = [msgspec.convert({"programs": PROGRAMS} | json.loads(options.settings), FrameSettings)]
    names = options.shape or list(SHAPES)
    if not options.quick:
        compile_ahead([launch for name in names for launch in launches(SHAPES[name], options.rows, given)])
    torch.manual_seed(0)
    table: dict[str, dict[str, object]] = {}
    for name in names:
        table |= measure(name, options.rows, given, options.quick)
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
