"""Sampling parameters of a request's body, by stage."""

from collections.abc import Mapping
from typing import Any

import msgspec

from omni.api import AsyncOmni
from omni.api.arguments import MAX_SAMPLES
from omni.errors import InputError, quoted, shortened
from omni.sampling import SamplingParams
from omni.serve.body import convert
from omni.serve.errors import Rename


def stage_sampling(
    omni: AsyncOmni,
    given: Mapping[str, Any],
    by_stage: Mapping[str, Mapping[str, Any]],
    *,
    strict: bool = True,
    **main: Any,
) -> dict[str, SamplingParams]:
    """Returns the sampling parameters by stage. given: the parameters in the body, which are those of the main stage. by_stage: the
    body's `sampling`, for the other stages. strict: as for `convert`. main: more parameters of the main stage; None is not given. A
    seed is for every stage that gets none of its own. Raises InputError."""
    stages, main_stage = omni.pipeline.sampling_stages, omni.pipeline.main_stage
    own = {**given, **{name: value for name, value in main.items() if value is not None}}
    params = convert(own, SamplingParams, strict=strict)
    sampling: dict[str, SamplingParams] = {}
    for stage, fields in by_stage.items():
        if stage == main_stage:
            problem = "is the stage that the request's own parameters are for"
            raise InputError(f"sampling.{shortened(stage)}", problem, "give them beside sampling")
        if stage not in stages:
            others = [name for name in stages if name != main_stage]
            remedy = f"use {' or '.join(map(quoted, others))}" if others else "leave it out"
            raise InputError(f"sampling.{shortened(stage)}", "is not a stage that samples", remedy)
        sampling[stage] = convert(fields, SamplingParams, f"sampling.{stage}")
    if main_stage is not None:
        sampling[main_stage] = params
    elif own:
        raise InputError(min(own), "is given, but no stage of this model samples", "leave it out")
    if params.seed is not None:
        for stage in stages:
            before = sampling.get(stage, SamplingParams())
            if before.seed is None:
                sampling[stage] = msgspec.structs.replace(before, seed=params.seed)
    return sampling


def samples_of(n: int | None) -> int:
    """The number of answers; 1 by default. Raises InputError before anything is allocated for them."""
    if n is not None and not 1 <= n <= MAX_SAMPLES:
        raise InputError("n", f"{quoted(n)} is out of range", f"use 1 to {MAX_SAMPLES}")
    return 1 if n is None else n


def names_in_body(omni: AsyncOmni, names: Mapping[str, str]) -> Rename:
    """The field that an error is about, as the body has it. names: of parameters and arguments that it calls otherwise."""
    main = f"sampling.{omni.pipeline.main_stage}."

    def rename(field: str) -> str:
        field = field.removeprefix(main)
        first, dot, rest = field.partition(".")
        return names[field] if field in names else names.get(first, first) + dot + rest

    return rename
