"""Finds the settings of linear maps of a few rows where they are used: among the other kernels of a model's layers.

    python benchmarks/tune/in_layers.py --targets code-predictor --rows 4 16 --seconds 40 --out in_steps.json

A target is a part of a model, in one CUDA graph: all passes of a codec frame, or all layers of a step without their attention.
`linear.py` times an operation over and over. Here the whole target uses another setting of one shape, and its time decides
(`descent.py`): whether the next kernel may begin early enough, and finds its weights in the L2 cache, counts too.

The shapes are those that the target looks up for exactly that number of rows. For each, these are tried: cuBLAS; what the tables
have for the shape, at any number of rows, with `early` and without; and candidates of `linear_candidates.py`, up to `--most`, from
each kernel in turn, beginning with those whose warps fill the device about once. For a norm and the product behind it: both in one
kernel, and each on its own. In one kernel the norm cannot add up parts, so it is tried together with the best setting of the
product before that leaves none.

With `--beside` each time is the sum of three: of the target alone; of the target while another one keeps a stream of lower priority
busy, as a thinker does beside a talker; and the time that the other one loses meanwhile. What is fastest alone may leave it none.

Each setting is checked against cuBLAS. A choice is kept if it saves at least 0.3%, also when the old and the new one take turns.
Then the other targets that look up the same shapes are timed. A change by which one of them takes over 0.5% longer is undone,
unless both targets together gain.

After each target and number of rows, what changed is written to `--out`, in the form of `in_steps.json`, over what the file has.
The search starts from what the file has.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial

import beside  # noqa: F401 - for `bench`
import torch
from agreement import refuse_wrong
from changed_tables import OPERATION, ChangedTables, converted, read_changes, save
from descent import Choice, Setting, Times, descend, shown
from layer_targets import TARGETS, LayeredPart, Lookups
from linear import LinearCase, launch
from linear_candidates import held_candidates, split_candidates, streamed_candidates, tiled_candidates
from msgspec.structs import replace
from target_timer import CUDA, TargetTimer
from triton.runtime.errors import TritonError

from bench.arguments import need_cuda, output_file, positive_float, positive_int
from bench.replay import Neighbour
from omni.device.kernel_choice import kernels_of
from omni.kernels import CompileProcesses, Variant, VariantRecorder
from omni_ar.kernels import tuning
from omni_ar.kernels.linear.settings import MOST_ROWS, LinearSettings, TiledSettings

SLOWER = 0.005
"""The share of its time that another target may lose."""
STREAMED_UP_TO = 4
"""Rows. With more, the streaming kernel has never been the fastest."""
WARPS = 8 * 132
"""Of a grid that fills the device about once: those of the fastest settings in the tables are between half and four times that."""


def shape_of(key: str) -> tuple[str, int, int]:
    """Kind, outputs and width."""
    kind, outputs, width, _ = key.split("-")
    return kind, int(outputs.removeprefix("N")), int(width.removeprefix("D"))


def candidates_of(key: str, rows: int, known: Iterable[tuning.Config], most: int) -> list[LinearSettings]:
    """known: settings of the shape for any number of rows. They come first, and all of them, letting the next kernel start early
    and late."""
    shape = kind, outputs, width = shape_of(key)
    # As `linear.py` does: fewer than eight rows are padded, and have the candidates of eight.
    padded = min(size for size in (8, 16, 32, 64) if size >= rows)
    families: list[Iterable[LinearSettings]] = [tiled_candidates(*shape, padded)]
    if kind == "linear":
        families.append(split_candidates(outputs, width, padded))
    if padded <= 32:
        families.append(held_candidates(*shape, padded))
    if rows <= STREAMED_UP_TO:
        families.append(streamed_candidates(*shape))
    found: dict[LinearSettings, None] = {}
    for setting in map(converted, known):
        if setting is not None:
            found[setting] = None
        if isinstance(setting, TiledSettings):
            other: TiledSettings = replace(setting, early=not setting.early)
            found[other] = None
    queues = [sorted(family, key=lambda setting: fill(setting, kind, outputs)) for family in families]
    for turn in range(max(map(len, queues))):
        for queue in queues:
            if turn < len(queue) and len(found) < most:
                found.setdefault(queue[turn])
    return list(found)


def fill(setting: LinearSettings, kind: str, outputs: int) -> float:
    """How far a grid is from filling the device once, in powers of two."""
    outputs //= 2 if kind.endswith("gated") else 1
    if isinstance(setting, TiledSettings):
        programs = -(-outputs // setting.tile_n) * setting.splits
    else:
        programs = -(-outputs // setting.block_n)
    return abs(math.log2(programs * setting.num_warps / WARPS))


class LayerSearch:
    """What there is to try for a target. look_up: what the target looks up with a choice."""

    def __init__(self, look_up: Callable[[Choice], Lookups], candidates: Mapping[str, Sequence[Setting]]) -> None:
        self._look_up, self._candidates = look_up, candidates
        self._before: dict[str, Counter[str]] = {}

    def keys(self, present: Choice) -> list[str]:
        """Those looked up, and norms that are not because they have parts to add up. Those with the most weights first, products
        before norms: a norm may need what was the best whole product."""
        found = self._look_up(present)
        self._before = found.before
        names = [name for name, _ in found.bytes.most_common() if name in self._candidates]
        products = [name for name in names if not name.startswith("norm_")]
        norms = [name for name in names if name.startswith("norm_")]
        norms += [norm for name in products if (norm := f"norm_{name}") in self._candidates and norm not in norms]
        return products + norms

    def moves(self, key: str, present: Choice, times: Times) -> Iterator[Choice]:
        parts = self._parts_before(key, present)
        for setting in self._candidates[key]:
            if setting == present[key]:
                continue
            if setting is None or parts is None:
                yield {key: setting}
            elif (whole := best_whole(times.get(parts, {}))) is not None:
                yield {key: setting, parts: whole[0]}

    def _parts_before(self, key: str, present: Choice) -> str | None:
        """The product whose parts the norm of `key` adds up, if it is split."""
        if not key.startswith("norm_"):
            return None
        names = (key, key.removeprefix("norm_"))
        before = sum((self._before.get(name, Counter()) for name in names), Counter[str]())
        others = [name for name, _ in before.most_common() if name not in names]
        return others[0] if others and splits(present.get(others[0])) > 1 else None


def splits(setting: Setting) -> int:
    return setting.splits if isinstance(setting, TiledSettings) else 1


def best_whole(times: Mapping[Setting, float]) -> tuple[Setting] | None:
    """Of the settings that were tried, None among them, the fastest that is not split."""
    whole = {setting: took for setting, took in times.items() if splits(setting) == 1 and took < float("inf")}
    return (min(whole, key=whole.__getitem__),) if whole else None


def fits_device(rows: int) -> Callable[[str, Setting], bool]:
    """Whether a setting of a key fits the device. Ends the script if its results are wrong."""
    case_of = cache(lambda key: LinearCase(*shape_of(key), rows))

    @cache
    def fits(key: str, setting: Setting) -> bool:
        if setting is None:
            return True
        try:
            error = case_of(key).wrong(setting)
        except (TritonError, RuntimeError) as problem:
            print(f"    refused: {key} {setting}: {str(problem)[:100]}")
            return False
        refuse_wrong(error, (key, rows, setting))
        return True

    return fits


def compile_in(processes: int, variants: Iterable[Variant]) -> Callable[[], object]:
    """Begins to compile, into Triton's cache and without the device, so that it disturbs no measurement. Returns a function that
    waits for it."""
    compiling = CompileProcesses()
    compiling.compile(variants, torch.cuda.get_device_capability(CUDA), processes)
    return compiling.wait


Compile = Callable[[Iterable[Variant]], Callable[[], object]]


@dataclass(frozen=True)
class PreparedSearch:
    """What is being compiled for a target. candidates: by key; None among them is cuBLAS, or a norm of its own."""

    name: str
    rows: int
    candidates: Mapping[str, Sequence[Setting]]
    wait: Callable[[], object]


class LayerTuner:
    """Tunes targets, whose models it keeps. seconds: of a search. most: candidates of a key. other: name and rows of a target that
    runs beside each one."""

    def __init__(
        self,
        device: str,
        tables: ChangedTables,
        compiles: Compile,
        most: int,
        seconds: float,
        other: tuple[str, int] | None = None,
    ) -> None:
        self.tables = tables
        self._other = other
        self._compiles, self._most, self._seconds = compiles, most, seconds
        self._device = device
        self._part: Callable[[str, str], LayeredPart] = cache(lambda name, device: TARGETS[name].make(device))

    def prepare(self, name: str, rows: int) -> PreparedSearch:
        present = self._present(self._timer(name, rows), rows)
        candidates: dict[str, Sequence[Setting]] = {
            key: [*candidates_of(key, rows, self.tables.sizes(key).values(), self._most), None] for key in present
        }
        return PreparedSearch(name, rows, candidates, self._compiles(self._variants(name, rows, candidates)))

    def _variants(self, name: str, rows: int, candidates: Mapping[str, Sequence[Setting]]) -> tuple[Variant, ...]:
        """The kernels that the candidates launch, and those around them. Nothing runs."""
        recorder, call = VariantRecorder(), self._part(name, "meta").call(rows)
        with kernels_of(CUDA), recorder.recording():
            for key, several in candidates.items():
                for setting in several:
                    if setting is None:
                        continue
                    job = (*shape_of(key), rows, setting)
                    launch(job, device="meta")
                    if key.startswith("norm_"):
                        # The first layer of a pass has no residual addition.
                        launch(job, device="meta", adds=False)
                # A norm that adds up parts is a kernel for their number.
                for one in {splits(setting): setting for setting in several}.values():
                    self.tables.use({key: one}, rows)
                    call()
                self.tables.restore([key])
        return tuple(recorder.variants)

    def tune(self, prepared: PreparedSearch) -> None:
        name, rows = prepared.name, prepared.rows
        print(f"{name}, {rows} rows: {sum(map(len, prepared.candidates.values()))} settings", flush=True)
        timer = self._timer(name, rows, fits_device(rows))
        # Asked again: what came between may have changed it.
        present = self._present(timer, rows)
        best = descend(present, LayerSearch(timer.look_up, prepared.candidates), timer, self._seconds)
        changes = changed(present, self._guarded(name, rows, present, best, timer))
        if changes:
            old, new = timer.compared(present, {**present, **changes})
            print(f"  {name}, {rows} rows: {old} -> {new} us: {shown(changes)}", flush=True)
            # What is left of changes that came together may be no gain.
            changes = changes if new.total < old.total else {}
        if not changes:
            print(f"  {name}, {rows} rows: {timer.seconds(present) * 1e6:.1f} us, as it was", flush=True)
        self.tables.keep(changes, rows)

    def _timer(
        self, name: str, rows: int, fits: Callable[[str, Setting], bool] = lambda key, setting: True
    ) -> TargetTimer:
        call, empty = (self._part(name, device).call(rows) for device in (self._device, "meta"))
        return TargetTimer(call, empty, rows, self.tables, fits, self._neighbour)

    @cached_property
    def _neighbour(self) -> Neighbour | None:
        if self._other is None:
            return None
        name, rows = self._other
        return Neighbour(self._part(name, self._device).call(rows))

    def _present(self, timer: TargetTimer, rows: int) -> Choice:
        """The settings of all keys that matter: those looked up, and of a product with a norm both its own and that of the two."""
        names = list(timer.look_up({}).bytes)
        names += [f"norm_{name}" for name in names if name.startswith("gated-")]
        names += [name.removeprefix("norm_") for name in names if name.startswith("norm_")]
        return {name: self.tables.setting(name, rows) for name in dict.fromkeys(names)}

    def _guarded(self, name: str, rows: int, present: Choice, best: Choice, timer: TargetTimer) -> Choice:
        """`best` without what another target loses by."""
        for other in TARGETS:
            if other == name or not changed(present, best):
                continue
            guard = self._timer(other, rows)
            used = {*guard.look_up(present).bytes, *guard.look_up(best).bytes}
            if used.isdisjoint(changed(present, best)):
                continue
            best = without_losses(present, best, used, timer.in_turns, guard.in_turns, other)
        return best


def without_losses(
    present: Choice,
    best: Choice,
    used: Iterable[str],
    own: Callable[[Choice, Choice], tuple[float, float]],
    others: Callable[[Choice, Choice], tuple[float, float]],
    other: str,
) -> Choice:
    """`best`, without changes that save less than they cost another target, if it loses by them. used: the keys that it looks up.
    own, others: time the target and the other one, in turns."""
    old, new = others(present, best)
    print(f"    {other}: {old * 1e6:.1f} -> {new * 1e6:.1f} us", flush=True)
    if new <= (1 + SLOWER) * old:
        return best
    for key in [key for key in changed(present, best) if key in set(used)]:
        fewer = {**best, key: present[key]}
        (kept, undone), (kept_there, undone_there) = own(best, fewer), others(best, fewer)
        undo = undone + undone_there < kept + kept_there
        print(f"    {key}: {'undone' if undo else 'kept: both together gain'}", flush=True)
        best = fewer if undo else best
    return best


def changed(present: Choice, best: Choice) -> Choice:
    return {key: setting for key, setting in best.items() if setting != present[key]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--rows", nargs="+", type=positive_int, help="for every target, instead of each one's own")
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=60.0,
        help="of the search for a target and number of rows, once compiled",
    )
    parser.add_argument("--beside", choices=TARGETS, help="keeps the device busy beside each target")
    parser.add_argument("--beside-rows", type=positive_int, default=8, help="of the target of --beside")
    parser.add_argument("--most", type=positive_int, default=24, help="candidates for a key and number of rows")
    parser.add_argument("--processes", type=positive_int, default=14, help="that compile")
    parser.add_argument("--out", type=output_file, help="a JSON file like in_steps.json; none without it")
    arguments = parser.parse_args()
    if arguments.rows and max(arguments.rows) > MOST_ROWS:
        parser.error(f"--rows: more than {MOST_ROWS} are for cuBLAS")
    need_cuda()
    tables = ChangedTables(CUDA, read_changes(arguments.out))
    other = (arguments.beside, arguments.beside_rows) if arguments.beside else None
    compiles = partial(compile_in, arguments.processes)
    tuner = LayerTuner("cuda", tables, compiles, arguments.most, arguments.seconds, other)
    pairs = [(name, rows) for name in arguments.targets for rows in arguments.rows or TARGETS[name].rows]
    following = tuner.prepare(*pairs[0])
    for index in range(len(pairs)):
        prepared = following
        prepared.wait()
        if index + 1 < len(pairs):
            # Compiled during the search.
            following = tuner.prepare(*pairs[index + 1])
        tuner.tune(prepared)
        save(arguments.out, tables.changed)
    print(json.dumps({OPERATION: tables.changed}, indent=1))


if __name__ == "__main__":
    main()
