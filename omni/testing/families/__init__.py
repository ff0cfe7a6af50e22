"""The conformance suite of model families: `check_family`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omni.frontend.base import Chat
from omni.plugin.manager import Plugins

Reference = Callable[[Sequence[int], int], Sequence[int]]
"""Prompt token ids and a number of tokens, to so many token ids: greedy, one request alone, going on after an
end-of-sequence id."""


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
        front end makes for `stage`. It returns exactly as many tokens as it is asked for.
    texts: requests, at least three of different length. One of 40 prompt tokens or more lets the suite check chunks and the
        prefix cache.
    plugins: None takes the installed ones.
    stage: whose tokens are compared; None takes the one that samples first (`Pipeline.main_stage`).
    max_tokens: of each request.
    overrides: settings, as `--set` has them.
    seeds: of late devices, in whose order work runs.
    """
    raise NotImplementedError
