"""The conformance suite of stage kinds: `check_stage`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from omni.payload import Payload
from omni.sampling import SamplingParams
from omni.stage import StageKind


def check_stage(
    kind: StageKind | Callable[[], StageKind] | str,
    *,
    options: msgspec.Struct,
    inputs: Sequence[Sequence[Payload]],
    expected: Sequence[Sequence[Payload]] | None = None,
    model: str = "",
    checkpoint: str | Path | None = None,
    sampling: SamplingParams | None = None,
    dtype: str = "float32",
    tolerance: float = 1e-5,
    seeds: Sequence[int] = (1, 2, 3),
) -> None:
    """Raises AssertionError, which names the broken promise of `omni.stage` and a remedy, if a stage kind breaks one.

    kind: a stage kind, a function that makes one, or the import path of one, `"module:attribute"`.
    options: an instance of the kind's options struct. Few rows (`max_num_seqs`) let the suite see requests wait.
    inputs: sample requests, at least two: the payloads of each, in order, with tensors in host memory.
    expected: the outputs of each request, with tensors in host memory; None takes those of the request alone.
    model: `Stage.model`, where the kind builds one.
    checkpoint: a folder; None makes one with an empty config.json.
    sampling: of every request, for a kind that samples; greedy or with a seed.
    dtype: of weights and activations.
    tolerance: absolute and relative, of floating-point outputs.
    seeds: of late devices, in whose order work runs.
    """
    raise NotImplementedError
