"""Steps that are run to measure their memory, the largest that a stage's limits allow, and their time."""

import time
from typing import Any

import msgspec
import numpy as np

from omni.device import SyncPoint, may_sync
from omni.sampling import GREEDY, MAX_LOGPROBS, SamplingParams
from omni_ar.inputs import Prompt
from omni_ar.kernels.sampling.state import COLUMNS, Need
from omni_ar.model import ArShape
from omni_ar.run.blocks.pool import NULL_BLOCK, BlockTable
from omni_ar.run.limits import MAX_STARTS, Limits, step_fields
from omni_ar.run.plan import PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, Row
from omni_ar.run.runner import Runner

_OF_CODES = Need.CODE_RANDOM | Need.CODE_TOP_K | Need.CODE_TOP_P
_NUMBERS: dict[str, Any] = {name: 1 for name, column in COLUMNS.items() if column.need & ~_OF_CODES}

EVERY_PARAMETER = SamplingParams(
    # For these parameters, 1 is off.
    **_NUMBERS | {"top_p": 0.5, "repetition_penalty": 2.0},
    logit_bias={0: 1.0},
    seed=0,
    suppress_token_ids=(0,),
    bad_words_ids=((0, 0),),
    logprobs=MAX_LOGPROBS,
).with_defaults(GREEDY)
"""The sampling parameters whose steps take the most memory."""

_TIMINGS = 12
_SCORED = msgspec.structs.replace(EVERY_PARAMETER, prompt_logprobs=MAX_LOGPROBS)


def run_largest_steps(runner: Runner, shape: ArShape, limits: Limits) -> None:
    """Launches steps: a decode of all rows at full length, also with drafts; the maximum of prompt tokens, in the longest chunks
    after the longest contexts, beside such decodes; and the maximum of scored prompt tokens. Every block is the null block. Waits
    for each step. Leaves the rows' state undefined: the runner must not be used afterwards."""
    requests = [_request(row, shape, limits, EVERY_PARAMETER) for row in range(limits.rows)]
    # A chunk with context needs a mask; a whole prompt does not.
    longest = max(limits.max_model_len - 2, 1)
    decodes = list(requests)
    chunks: list[PrefillChunk] = []
    left = limits.max_num_batched_tokens
    while left > 0 and decodes and len(chunks) < MAX_STARTS:
        chunks.append(_last_chunk(decodes.pop(), min(left, longest)))
        left -= chunks[-1].length
    alone = [StepPlan(0, tuple(requests), drafts=positions - 1) for positions in limits.step_sizes]
    plans = [*alone, StepPlan(1, tuple(decodes), tuple(chunks))]
    if limits.scored_tokens:
        scored = _request(0, shape, limits, _SCORED)
        plans.append(StepPlan(2, tuple(requests[1:]), (_last_chunk(scored, min(limits.scored_tokens, longest)),)))
    for plan in plans:
        step = runner.sample_tokens(runner.execute_model(plan))
        with may_sync(SyncPoint.MEASURE):
            runner.device.synchronize()
        for handoff in (step.tokens, step.scores):
            if handoff is not None:
                handoff.host.release()


def time_decodes(runner: Runner, shape: ArShape, limits: Limits, length: int) -> list[int]:
    """Nanoseconds of a decode step of all rows, several times; each is the mean of the maximum number of steps in flight, of which
    the host waits for the last. length: of each row; their tokens and contexts are random. Leaves the rows' state undefined."""
    sampling = GREEDY.with_defaults(GREEDY)
    together = max(1, min(limits.max_in_flight, limits.max_model_len - 2))
    length = max(0, min(length, limits.max_model_len - 1 - together))
    requests = tuple(_request(row, shape, limits, sampling, length) for row in range(limits.rows))
    times: list[int] = []
    step = 0
    for _ in range(_TIMINGS):
        runner.spread_rows(length)
        with may_sync(SyncPoint.MEASURE):
            runner.device.synchronize()
        since, launched = time.perf_counter_ns(), []
        for _ in range(together):
            step += 1
            launched.append(runner.sample_tokens(runner.execute_model(StepPlan(step, requests))))
        with may_sync(SyncPoint.MEASURE):
            runner.device.synchronize()
        times.append((time.perf_counter_ns() - since) // together)
        for each in launched:
            if each.tokens is not None:
                each.tokens.host.release()
    return times[1:]  # the first steps may have compiled kernels


def _last_chunk(request: ArRequest, length: int) -> PrefillChunk:
    return PrefillChunk(request, request.length - length, length, first=True, last=True, replay=False)


def _request(
    row: int, shape: ArShape, limits: Limits, sampling: SamplingParams, length: int | None = None
) -> ArRequest:
    """A request with a consumer for all hidden states that the model stores. length: at most, and by default, the maximum that
    still allows a token."""
    length = min(length or limits.max_model_len, limits.max_model_len - 1)
    prompt = Prompt(
        columns=np.zeros((len(shape.prompt_columns), length), np.int64),
        positions=np.broadcast_to(np.arange(length), (shape.position_axes, length)),
        next_position=length,
        payload_positions=np.arange(length if shape.payload_width else 0),
    )
    return ArRequest(
        str(row),
        sampling,
        set(),
        prompt=prompt,
        step_pad=np.zeros(step_fields(shape), np.int64),
        row=Row(row, 0),
        table=BlockTable.of(str(row), [NULL_BLOCK] * limits.max_blocks, limits.max_blocks),
        num_computed_tokens=length,
        prefill_end=length,
        num_scheduled_outputs=1,
    )
