"""The conformance suite of stage kinds: `check_stage`."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from omni.errors import ConfigError
from omni.payload import Payload
from omni.plugin import locate
from omni.sampling import SamplingParams
from omni.stage import StageKind
from omni.testing.retries import no_retries
from omni.testing.stages import interruptions, refusals, runs
from omni.testing.stages.bench import Checked, StageBench
from omni.testing.stages.values import expected_values

__all__ = ["CHECKS", "check_stage"]

CHECKS: tuple[Callable[[StageBench], None], ...] = (
    runs.declares,
    runs.not_before_ready,
    runs.alone,
    runs.together,
    runs.in_parts,
    runs.of_two_producers,
    runs.by_order,
    runs.from_the_front_end,
    refusals.foreign_input,
    refusals.refused_input,
    refusals.incomplete_input,
    runs.without_input,
    runs.read_late,
    interruptions.paused,
    interruptions.aborted,
    interruptions.all_aborted,
    interruptions.failures,
    interruptions.closed,
    runs.late_devices,
    runs.guarded,
    runs.counted,
)
"""The checks, in order. Each docstring names the faults that its check detects."""
_FEWEST = 2


def check_stage(
    kind: StageKind | Callable[[], StageKind] | str,
    *,
    options: msgspec.Struct,
    inputs: Sequence[Sequence[Payload]],
    expected: Sequence[Sequence[Payload]] | None = None,
    refused: Sequence[Sequence[Payload]] = (),
    model: str | None = None,
    checkpoint: str | Path | None = None,
    sampling: SamplingParams | None = None,
    dtype: str = "float32",
    tolerance: float = 1e-5,
    seeds: Sequence[int] = (1, 2, 3),
    unused: Collection[str] = (),
) -> None:
    """Raises AssertionError, which names the broken promise of `omni.stage` and a remedy, if a stage kind breaks one.

    kind: a stage kind, a function that makes one, or the import path of one, `"module:attribute"`.
    options: an instance of the kind's options struct. Few rows (`max_num_seqs`) let the suite see requests wait.
    inputs: sample requests, at least two: the payloads of each, in order, with tensors in host memory.
    expected: the outputs of each request, with tensors in host memory; None takes those of the request alone.
    refused: inputs of requests that the stage must fail, such as one with too many rows.
    model: `Stage.model`, where the kind builds one.
    checkpoint: a folder; None makes one with an empty config.json.
    sampling: of every request, for a kind that samples; greedy or with a seed.
    dtype: of weights and activations.
    tolerance: absolute and relative, of floating-point outputs.
    seeds: of late devices, in whose order work runs.
    unused: names of `usage` for resources that these requests never hold.

    The suite plays the orchestrator and the stages around: it lends each input from memory of its own, which it overwrites
    as soon as the stage has freed it, and reads outputs on a stream of its own, at once or late.

    | checked | in |
    |---|---|
    | the kind, its options, its memory | `declares` |
    | outputs of requests alone, in batches, fed in parts | `alone`, `together`, `in_parts`, `from_the_front_end` |
    | two producers that end in turn; the serving order | `of_two_producers`, `by_order` |
    | nothing is read before it is ready | `not_before_ready` |
    | bad and missing inputs | `foreign_input`, `refused_input`, `incomplete_input`, `without_input` |
    | outputs keep their memory until they are free | `read_late` |
    | a request is paused and resumed, or aborted, at every point | `paused`, `aborted`, `all_aborted` |
    | every launch fails, one by one; `close` at every point frees all | `failures`, `closed` |
    | late devices, with every memory access checked for races | `late_devices` |
    | no wait for the device, no tensor work outside of a phase | `guarded` |
    | `usage` is not zero while a request or an input is there; counters grow | everywhere |
    | each name of `usage` counts something | `counted` |
    | after each, `usage` is zero and every input is released | everywhere |

    A point is a tick, on a device that runs one operation in each; of a long request, 32 points are taken.
    """
    if len(inputs) < _FEWEST:
        raise ConfigError("inputs", f"are those of {len(inputs)} requests", f"give {_FEWEST} or more")
    if expected is not None and len(expected) != len(inputs):
        raise ConfigError("expected", f"are of {len(expected)} requests, inputs of {len(inputs)}", "give one for each")
    checked = Checked(
        kind=_factory(kind),
        options=options,
        inputs=inputs,
        refused=refused,
        model=model,
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
        sampling=sampling or SamplingParams(),
        dtype=dtype,
        tolerance=tolerance,
        seeds=seeds,
        unused=unused,
    )
    bench = StageBench(checked)
    bench.expected = [expected_values(each) for each in expected or ()]
    try:
        for check in CHECKS:
            _run(check, bench)
    finally:
        bench.close()


def _run(check: Callable[[StageBench], None], bench: StageBench) -> None:
    try:
        with no_retries():
            check(bench)
    except AssertionError as error:
        error.add_note(f"in the check {check.__name__}")
        raise


def _factory(kind: StageKind | Callable[[], StageKind] | str) -> Callable[[], StageKind]:
    made = locate(kind, "kind") if isinstance(kind, str) else kind
    if isinstance(made, StageKind) and not isinstance(made, type):
        return lambda: made
    assert callable(made)
    factory: Callable[[], StageKind] = made
    return factory
