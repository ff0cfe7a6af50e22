"""The conformance suite of model families: `check_family`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omni.errors import ConfigError
from omni.frontend.base import Chat
from omni.plugin.manager import Plugins, load_plugins
from omni.testing.families import checks
from omni.testing.families.bench import FamilyBench, Reference, TestedFamily
from omni.testing.retries import no_retries

__all__ = ["CHECKS", "Reference", "check_family"]

CHECKS: tuple[Callable[[FamilyBench], None], ...] = (
    checks.alone,
    checks.together,
    checks.one_by_one,
    checks.in_chunks,
    checks.warm_cache,
    checks.in_flight,
    checks.preempted,
    checks.aborted,
    checks.replayed,
    checks.late_devices,
    checks.guarded,
)
"""The checks, in order. Each docstring names the faults that its check detects."""

_FEWEST_TEXTS = 3


def check_family(
    folder: str | Path,
    *,
    reference: Reference,
    texts: Sequence[str | Chat],
    plugins: Plugins | None = None,
    stage: str | None = None,
    max_tokens: int = 12,
    overrides: Mapping[str, object] | None = None,
    seeds: Sequence[int] = (1, 2, 3),
) -> None:
    """Raises AssertionError, with the request, the first wrong token and a remedy, if an autoregressive stage of the family
    does not give the tokens of `reference`, however its requests are run.

    folder: a checkpoint, a tiny one: the suite runs every text some dozens of times, on the CPU in float32.
    reference: the author's own loop, in plain torch or transformers. Its prompt is the first column of the prompt that the
        front end makes for `stage`. It returns exactly the requested number of tokens.
    texts: requests, at least three of different length. One of 40 prompt tokens or more lets the suite check chunks and the
        prefix cache.
    plugins: None takes the installed ones.
    stage: whose tokens are compared; None takes the one that samples first (`Pipeline.main_stage`).
    max_tokens: of each request.
    overrides: settings, as `--set` has them.
    seeds: of late devices, in whose order work runs.

    | checked | in |
    |---|---|
    | each request alone, twice; all in one batch; joining one by one | `alone`, `together`, `one_by_one` |
    | prompts in chunks; a prefix cache, cold and warm | `in_chunks`, `warm_cache` |
    | 1 to 8 steps in flight; preemption; requests that are aborted | `in_flight`, `preempted`, `aborted` |
    | steps that are captured and replayed | `replayed` |
    | late devices, with every memory access checked for races | `late_devices` |
    | no wait for the device, no tensor work outside of a phase | `guarded` |
    | after each run no stage holds anything, and no batch was retried | everywhere |

    A setting that the stage's kind does not have is left out. Raises ConfigError for unsuitable arguments, among them a
    reference that always writes the same, and the errors of a folder that cannot be loaded.
    """
    if len(texts) < _FEWEST_TEXTS:
        raise ConfigError("texts", f"are {len(texts)}", f"give {_FEWEST_TEXTS} or more, of different length")
    family = TestedFamily(
        folder=Path(folder),
        plugins=load_plugins() if plugins is None else plugins,
        stage=stage,
        max_tokens=max_tokens,
        overrides=overrides or {},
        seeds=seeds,
    )
    bench = FamilyBench(family, texts, reference)
    answers = {case.answer for case in bench.cases}
    if len(answers) < 2 or max(len(set(answer)) for answer in answers) < 3:
        remedy = "give the tiny checkpoint weights that tell texts apart (omni.tiny has `seeded`, `fill` and `tame`)"
        raise ConfigError("reference", "writes almost the same for every text, which a wrong model does too", remedy)
    for check in CHECKS:
        try:
            with no_retries():
                check(bench)
        except AssertionError as error:
            error.add_note(f"in the check {check.__name__}")
            raise
