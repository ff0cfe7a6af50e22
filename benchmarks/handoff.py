"""The problem that omni solves: one model, its payload packaged inline or handed over.

    python benchmarks/handoff.py [--families hidden omni] [--eager] [--pictures FOLDER] [--json FILE]

Each family runs (a) with packaging and payload copies inline, before a step's tokens are released (`bench/inline.py`), and
(b) with the two handoffs; over the same weights, in one process, in turns. Consumers gather their payloads on the device, in
both.

- `hidden`: the 30B thinker's shape, 32 rows, each with its own prompt of 512 ids; every token emits a hidden state of 2,048.
- `omni`: Qwen3-Omni's thinker and talker on one device, 8 requests at once, 64 text tokens and 250 frames each. The thinker's
  prompts lend 128 hidden states each to the talker; every talker step makes a frame of 16 codes per row. Vocoder and encoders are
  left out: frames are gathered, and that is all.

Printed are medians over the steps in which all rows decode, of the better of two rounds: step time between token events; host time
of `sample_tokens`; time between launches on the host; the device's idle time between the end of a step and the beginning of the
next. Tokens (frames) per second are of the mean step, by the host's launches: a few long steps count there, and not in the median.
Both variants of a round count as many steps, from the first such on. Experts are counted as in `decode.py`: once for both.

After the numbers are printed, a few steps of each are recorded again under a timeline, which cuts the graphs at phases, and are
drawn one above the other on one scale. With one step in flight or several, no step can be launched while (a) waits.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import weights
from bench.arguments import device_here, output_file, output_folder
from bench.device import open_timed
from bench.engine import BenchEngine
from bench.handoff_families import HandoffFamily, HiddenFamily, OmniFamily, Setup
from bench.inline import InlinePackaging
from bench.report import environment, host_loop, print_facts, print_table, write_json
from bench.routing import Routing, count_experts, is_void, routing_text
from bench.steps import LaunchedStep, StepTimes, steady_steps, times_of
from omni.checkpoint import Checkpoint
from omni.timeline import Trace, watched, write_trace
from omni.timeline.picture import draw, excerpt_of
from shapes import SHAPES

_ROUNDS = 2
_FAMILIES: dict[str, Callable[[Setup], HandoffFamily]] = {"hidden": HiddenFamily, "omni": OmniFamily}
_TITLES = {True: "(a) packaged inline", False: "(b) two handoffs"}


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One stage of one variant, the better of its rounds by step time. experts: of all rounds, None for a dense model."""

    family: str
    stage: str
    inline: bool
    rows: int
    times: StepTimes
    experts: Routing | None

    @property
    def cells(self) -> tuple[str, ...]:
        times = self.times
        return (
            f"{self.family}, {self.stage} x {self.rows}, {_TITLES[self.inline]}",
            f"{times.step[0] / 1000:.3f}",
            f"{times.wall / 1000:.3f}",
            f"{times.sample[0]:.0f} / {times.sample[1]:.0f}",
            f"{times.launch[0]:.0f}",
            f"{times.idle[0]:.0f} / {times.idle[1]:.0f}",
            f"{self.rows / times.wall * 1e6:.0f}",
            "VOID" if is_void(self.experts) else "",
            routing_text(self.experts),
        )


_HEADER = (
    "",
    "step ms p50",
    "mean",
    "sample_tokens us p50 / p99",
    "launch to launch us",
    "idle us p50 / p99",
    "tokens/s",
    "verdict",
    "experts (uniform)",
)


@contextmanager
def variant(family: HandoffFamily, *, inline: bool) -> Iterator[tuple[BenchEngine, list[InlinePackaging]]]:
    """An engine of the family, warm."""
    bench = family.engine(family.setup.graphs)
    packaging = []
    if inline:
        packaging = [
            InlinePackaging(bench.device, bench.recorders[stage], runner, family.rows, family.setup.graphs)
            for stage, runner in bench.runners.items()
        ]
    family.run(bench, "warm", short=True)
    bench.clear()
    try:
        yield bench, packaging
    finally:
        bench.close()


def compare(family: HandoffFamily) -> list[VariantRow]:
    """Rounds of both variants in turns."""
    best: dict[tuple[str, bool], StepTimes] = {}
    names = [f"turn {turn}" for turn in range(1 if family.setup.tiny else _ROUNDS)]
    experts = routing_of(family, names)
    for name in names:
        steady: dict[tuple[str, bool], list[LaunchedStep]] = {}
        for inline in (True, False):
            with variant(family, inline=inline) as (bench, packaging):
                family.run(bench, name)
                assert all(one.rows for one in packaging), "every stage must have packaged its payload"
                for stage, recorder in bench.recorders.items():
                    steady[stage, inline] = steady_steps(recorder.steps, family.rows)
        for (stage, inline), steps in steady.items():
            # Contexts grow step by step: as many steps are as much work.
            times = times_of(steps[: len(steady[stage, not inline])])
            what = f"{family.name}, {stage}, {_TITLES[inline]}, {name}"
            print(f"{what}: {times.brief}, host {host_loop():.0f} us a loop", flush=True)
            known = best.get((stage, inline))
            if known is None or times.step[0] < known.step[0]:
                best[stage, inline] = times
    return [
        VariantRow(family.name, stage, inline, family.rows, times, experts.get(stage))
        for (stage, inline), times in sorted(best.items())
    ]


def routing_of(family: HandoffFamily, names: Sequence[str]) -> dict[str, Routing]:
    """Routing by stage with experts, in the first steps of the rounds `names`: of both variants, which have the same weights,
    prompts and seeds."""
    bench = family.engine(graphs=False)

    def run() -> None:
        for name in names:
            family.run(bench, name, short=True)

    found = count_experts(bench, family.rows, run)
    bench.close()
    return found


def record(family: HandoffFamily, *, inline: bool) -> Trace:
    """The timeline of a short run."""
    with watched(family.setup.device, family.stages) as timeline, variant(family, inline=inline) as (bench, _):
        timeline.start()
        family.run(bench, "drawn", short=True)
        return timeline.stop()


def draw_family(family: HandoffFamily, folder: Path) -> None:
    """The timelines of both variants, as files and as one picture."""
    panels = []
    for inline in (True, False):
        trace = record(family, inline=inline)
        write_trace(trace, folder / f"handoff-{family.name}-{'inline' if inline else 'handoffs'}.json")
        panels.append((f"{family.title}: {_TITLES[inline]}", trace, excerpt_of(trace, stage=family.drawn, steps=4)))
    draw(panels, folder / f"handoff-{family.name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", nargs="+", choices=_FAMILIES, default=list(_FAMILIES))
    parser.add_argument("--eager", action="store_true", help="capture no graphs")
    parser.add_argument("--pictures", type=output_folder, help="write timelines and pictures here")
    parser.add_argument("--device", type=device_here("--tiny --device cpu"), choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, few rows: to see that it runs")
    parser.add_argument("--json", type=output_file, help="write the numbers here")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        SHAPES["tiny-omni" if arguments.tiny else "qwen3-omni-30b"](Path(folder))
        checkpoint = Checkpoint(Path(folder))
        dtype, graphs = ("bfloat16" if cuda else "float32"), cuda and not arguments.eager
        setup = Setup(checkpoint, open_timed(arguments.device), dtype, graphs, arguments.tiny)
        families = [_FAMILIES[name](setup) for name in arguments.families]
        tell([row for family in families for row in compare(family)], arguments.json)
        if arguments.pictures is not None:
            for family in families:
                draw_family(family, arguments.pictures)
    weights.forget()


def tell(rows: list[VariantRow], path: Path | None) -> None:
    """Prints the numbers, and writes them to `path`. Before pictures are drawn: what goes wrong there costs no numbers."""
    print_table(_HEADER, [row.cells for row in rows])
    facts = environment()
    print_facts(facts)
    write_json(path, [asdict(row) for row in rows], facts)


if __name__ == "__main__":
    main()
