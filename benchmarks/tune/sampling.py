"""Measures the sampling kernels, and the settings of the sampler of a wide vocabulary.

    python benchmarks/tune/sampling.py --out stages/omni_ar/kernels/tuning/nvidia_h200

First, common cases have to give the ids that plain torch gives. Each case then runs in one CUDA graph over copies of the logits
that are larger than the L2 cache together, with other rows' positions. Times are medians of one call, next to the time that its
logits take to be read once. `--quick` tries no settings.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import beside  # noqa: F401 - for `bench`
import msgspec
import torch
from agreement import refuse_wrong
from torch import Tensor

from bench.arguments import need_cuda, output_folder
from bench.replay import H200_BANDWIDTH, replayed_seconds
from omni.device.kernel_choice import plain_torch
from omni_ar.kernels.sampling import kernel
from omni_ar.kernels.sampling.settings import RowSettings, WideSettings
from omni_ar.kernels.sampling.state import COLUMNS, EVERYTHING, NEVER, Need, SamplingFlags, SamplingState
from omni_ar.sampling.sampler import draw, sample

VOCAB, TALKER, CODES = 152_064, 3_072, 2_048
ROWS = (1, 8, 32, 64)
CASES = {
    "greedy": 0,
    "temperature": Need.RANDOM,
    "top-k 50": Need.RANDOM | Need.TOP_K,
    "top-k 50, top-p 0.8": Need.RANDOM | Need.TOP_K | Need.TOP_P,
    "top-p 0.8, peaked": Need.RANDOM | Need.TOP_P,
    "top-p 0.8, flat": Need.RANDOM | Need.TOP_P,
    "repetition, greedy": Need.REPETITION,
    "everything": Need.ALL,
}
DRAWN = Need.CODE_RANDOM | Need.CODE_TOP_K | Need.CODE_TOP_P
CHECKED = ("greedy", "temperature", "top-k 50, top-p 0.8")
ROW_SETTINGS = [RowSettings(warps=warps) for warps in (1, 2, 4, 8)]
SETTINGS = [
    WideSettings(block=block, tile=tile, nucleus=256, scan_warps=scan, scan_registers=registers, finish_warps=finish)
    for block, tile, scan, registers, finish in (
        (2048, 128, 4, 64, 8),
        (2048, 128, 8, 40, 8),
        (1024, 128, 4, 48, 8),
        (4096, 128, 8, 64, 8),
        (4096, 128, 16, 40, 8),
        (2048, 128, 4, 0, 8),
        (2048, 128, 4, 64, 4),
        (2048, 128, 4, 64, 16),
        (2048, 64, 4, 64, 8),
    )
]


def state_of(rows: int, vocab: int, bits: int) -> SamplingState:
    """Rows that all need the same."""
    state = SamplingState.allocate(lambda size, dtype: torch.zeros(size, dtype=dtype, device="cuda"), rows, vocab)
    numbers = dict.fromkeys(COLUMNS, 1.0) | {
        "needs": bits, "temperature": 0.9 if bits & Need.RANDOM else 0.0, "top_k": 50, "top_p": 0.8, "min_p": 0.01,
        "top_n_sigma": 3.0, "repetition_penalty": 1.1, "frequency_penalty": 0.5, "presence_penalty": 0.5,
        "code_top_k": 50, "code_top_p": 0.8, "min_tokens": 2**40, "sample_index": 0,
    }  # fmt: skip
    for name, value in numbers.items():
        getattr(state, name).fill_(value)
    state.stop_ids.fill_(-1)
    state.bad_words.fill_(NEVER)
    state.seed.copy_(torch.arange(rows))
    state.seen[:, ::7] = True
    state.counts[:, ::11] = 3
    state.bias_ids[:, :300] = torch.randperm(vocab, device="cuda")[:300]
    state.biases[:, :300] = 1.0
    return state


def logits_of(rows: int, vocab: int, scale: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Copies that do not fit the L2 cache together, `[copies, R, V]`."""
    copies = min(max(200_000_000 // (4 * rows * vocab), 2), 130)
    return (torch.randn(copies, rows, vocab, device="cuda") * scale).to(dtype)


def sample_seconds(rows: int, vocab: int, case: str, settings: WideSettings | None = None) -> float:
    state, rows_R = state_of(rows, vocab, CASES[case]), torch.arange(rows, device="cuda")
    logits = logits_of(rows, vocab, 6.0 if case.endswith("peaked") else 1.0)
    out_R = torch.empty_like(rows_R)

    def call(index: int) -> Callable[[], object]:
        position_R = rows_R + index
        if settings is None:
            return lambda: kernel.sample(logits[index], state, rows_R, position_R, False, 0, out_R)
        return lambda: kernel.sample_wide(logits[index], state, rows_R, position_R, False, 0, out_R, settings)

    return replayed_seconds([call(index) for index in range(len(logits))])


def other_ids(given_R: Tensor, expected_R: Tensor, settings: object) -> None:
    """Ends the script if more than a few rows have other ids than plain torch gives them, as they may within rounding."""
    refuse_wrong((given_R != expected_R).float().mean().item(), settings, most=1 / 16)


def check_samples(vocab: int, case: str, settings: WideSettings | None = None, row: RowSettings | None = None) -> None:
    """settings: of a wide vocabulary; row: of a narrow one. None for those in use."""
    bits, rows_R = CASES[case], torch.arange(max(ROWS), device="cuda")
    state, logits_RV = state_of(max(ROWS), vocab, bits), logits_of(max(ROWS), vocab, 2.0)[0]
    flags = SamplingFlags(bits)
    with plain_torch():
        expected_R = sample(logits_RV, state, rows_R, rows_R, flags)
    out_R = torch.empty_like(rows_R)
    given = (logits_RV, state, rows_R, rows_R, False, 0, out_R)
    if settings is not None:
        kernel.sample_wide(*given, settings)
    elif row is not None:
        kernel.sample_narrow(*given, row)
    else:
        kernel.sample(*given)
    other_ids(out_R, expected_R, (vocab, case, settings, row))


def check_draws(row: RowSettings | None = None) -> None:
    """row: None for those in use."""
    state, rows_R = state_of(max(ROWS), CODES, DRAWN), torch.arange(max(ROWS), device="cuda")
    logits_RV = logits_of(max(ROWS), CODES, 2.0, torch.bfloat16)[0]
    given = (logits_RV, state, rows_R, rows_R, 3)
    with plain_torch():
        expected_R = draw(*given, EVERYTHING)
    other_ids(kernel.draw(*given, row), expected_R, ("draw", row))


def draw_seconds(rows: int, bits: int, row: RowSettings | None = None) -> float:
    state, rows_R = state_of(rows, CODES, bits), torch.arange(rows, device="cuda")

    def call(logits_RV: Tensor, index: int) -> Callable[[], object]:
        position_R = rows_R + index
        return lambda: kernel.draw(logits_RV, state, rows_R, position_R, 3, row)

    logits = logits_of(rows, CODES, 2.0, torch.bfloat16)
    return replayed_seconds([call(logits_RV, index) for index, logits_RV in enumerate(logits)])


def narrow_seconds(rows: int, case: str, row: RowSettings) -> float:
    state, rows_R = state_of(rows, TALKER, CASES[case]), torch.arange(rows, device="cuda")
    out_R = torch.empty_like(rows_R)

    def call(logits_RV: Tensor, index: int) -> Callable[[], object]:
        position_R = rows_R + index
        return lambda: kernel.sample_narrow(logits_RV, state, rows_R, position_R, False, 0, out_R, row)

    return replayed_seconds([call(logits_RV, index) for index, logits_RV in enumerate(logits_of(rows, TALKER, 2.0))])


def report() -> None:
    print(f"{'us, and the floor':30s}" + "".join(f"{f'{rows} rows':>18s}" for rows in ROWS))
    for vocab in (VOCAB, TALKER):
        for case in CASES:
            line = f"{f'{vocab} {case}':30s}"
            for rows in ROWS:
                took = sample_seconds(rows, vocab, case)
                line += f"{took * 1e6:10.1f} ({4e6 * rows * vocab / H200_BANDWIDTH:4.1f})"
            print(line, flush=True)
    for name, bits in (("codes, greedy", 0), ("codes, top-k 50, top-p 0.8", DRAWN)):
        print(f"{name:30s}" + "".join(f"{draw_seconds(rows, bits) * 1e6:10.1f}       " for rows in ROWS), flush=True)


Job = tuple[Callable[..., float], tuple[object, ...]]


def compile_one(job: Job) -> None:
    """Fills the compiler's cache."""
    measure, arguments = job
    measure(*arguments)


def tune(out: Path) -> None:
    """The settings under which the cases that are common take least, each next to the best for it."""
    jobs: list[Job] = [(sample_seconds, (1, VOCAB, "greedy", settings)) for settings in SETTINGS]
    jobs += [(draw_seconds, (1, 0, row)) for row in ROW_SETTINGS]
    jobs += [(narrow_seconds, (1, "greedy", row)) for row in ROW_SETTINGS]
    with ProcessPoolExecutor(15, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, jobs))
    for case in CHECKED:
        for settings in SETTINGS:
            check_samples(VOCAB, case, settings)
        for row in ROW_SETTINGS:
            check_samples(TALKER, case, row=row)
    for row in ROW_SETTINGS:
        check_draws(row)
    weighed = [(rows, case) for rows in (1, 64) for case in CHECKED]
    table = [[sample_seconds(rows, VOCAB, case, settings) for rows, case in weighed] for settings in SETTINGS]
    for settings, times in zip(SETTINGS, table, strict=True):
        print(" ".join(f"{took * 1e6:7.1f}" for took in times), settings, flush=True)
    best = [min(times) for times in zip(*table, strict=True)]
    costs = [sum(took / least for took, least in zip(times, best, strict=True)) for times in table]
    chosen = SETTINGS[costs.index(min(costs))]
    print("chosen:", chosen)
    best_draw = least("draw", lambda row: draw_seconds(1, DRAWN, row) + draw_seconds(64, DRAWN, row))
    best_narrow = least("sample", lambda row: sum(narrow_seconds(1, case, row) for case in list(CASES)[:4]))
    chosen_for = {f"V{vocab}": chosen for vocab in (VOCAB, 151_936)} | {
        f"draw-{CODES}": best_draw,
        "sample-4096": best_narrow,
    }
    shapes = {name: {"1": msgspec.to_builtins(settings)} for name, settings in chosen_for.items()}
    (out / "sampling.json").write_text(json.dumps(shapes, indent=1) + "\n")


def least(name: str, cost: Callable[[RowSettings], float]) -> RowSettings:
    """The settings that take least time."""
    costs = [cost(row) for row in ROW_SETTINGS]
    print(name, {row.warps: f"{took * 1e6:.1f} us" for row, took in zip(ROW_SETTINGS, costs, strict=True)}, flush=True)
    return ROW_SETTINGS[costs.index(min(costs))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=output_folder, default="build/tuning", help="folder of sampling.json")
    parser.add_argument("--quick", action="store_true", help="measure what there is, and try no settings")
    arguments = parser.parse_args()
    need_cuda()
    torch.manual_seed(0)
    for case in CHECKED:
        check_samples(VOCAB, case)
        check_samples(TALKER, case)
    check_draws()
    report()
    if not arguments.quick:
        tune(arguments.out)


if __name__ == "__main__":
    main()
