"""Times a part of a model, a target of `in_layers.py`, with entries of the tables replaced together.

    python benchmarks/tune/layer_times.py code-predictor 8 \\
        --replace linear linear-N1024-D2048-bfloat16 '{"kernel": "tiled", ...}' \\
        --replace linear gated-N6144-D1024-bfloat16 '{"kernel": "tiled", ...}' '{}'

A target is one CUDA graph: all passes of a codec frame, or all layers of a step without their attention. The first pass of a frame
has two rows for each of the others': KEY@16 is its entry for 8 rows.

Prints the median time by the tables, with each combination of the replaced entries, and by the tables again. All take turns, so
what lies within the difference between the first and the last is noise. Results are not checked: give settings that another script
or a test has found right. `in_steps.py` times the step of a whole model in the same way.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import beside  # noqa: F401 - for `bench`
import torch
from layer_targets import TARGETS
from replacements import Entries, add_replace, read_replace, replaced, shown
from target_timer import PRIORITY
from triton.runtime.errors import TritonError

from bench.arguments import device_here, positive_int
from bench.replay import captured, seconds_in_turns


def times_of(call: Callable[[], object], tried: Sequence[Entries], device: torch.device, turns: int) -> list[float]:
    """Median seconds of `call` with each of these; inf for settings that do not fit the device."""
    if device.type == "cpu":
        return [_on_the_host(call, entries, device, turns) for entries in tried]
    with ExitStack() as graphs:
        replays: dict[int, Callable[[], object]] = {}
        for index, entries in enumerate(tried):
            try:
                with replaced(entries, device):
                    graph = captured([call], warm=1, tidy=False, priority=PRIORITY)
                    replays[index] = graphs.enter_context(graph)
            except (TritonError, RuntimeError) as error:
                print(f"refused: {shown(entries)}: {str(error)[:100]}", flush=True)
        times = dict(zip(replays, seconds_in_turns(list(replays.values()), turns), strict=True))
    return [times.get(index, float("inf")) for index in range(len(tried))]


def _on_the_host(call: Callable[[], object], entries: Entries, device: torch.device, turns: int) -> float:
    took = []
    with replaced(entries, device):
        for _ in range(turns):
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
    return statistics.median(took)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS, help="the part of a model")
    parser.add_argument("rows", type=positive_int, help="of each pass")
    add_replace(parser)
    parser.add_argument("--turns", type=positive_int, default=25, help="of each combination")
    parser.add_argument(
        "--device",
        type=device_here("--device cpu"),
        choices=("cuda", "cpu"),
        default="cuda",
        help="the CPU, without these kernels, only shows that the script runs",
    )
    options = parser.parse_args()
    tried = ({}, *read_replace(parser, options.replace, options.rows), {})
    device = torch.device(options.device, *[0] * (options.device == "cuda"))
    call = TARGETS[options.target].make(options.device).call(options.rows)
    for took, entries in zip(times_of(call, tried, device, options.turns), tried, strict=True):
        print(f"{took * 1e6:9.1f} us  {shown(entries)}")


if __name__ == "__main__":
    main()
