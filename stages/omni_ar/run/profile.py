"""The largest steps that a stage's limits allow, to measure what they take."""

import numpy as np

from omni.sampling_params import MAX_LOGPROBS, SamplingParams
from omni_ar.inputs import Prompt
from omni_ar.model import ArShape
from omni_ar.options import GREEDY
from omni_ar.run.blocks import NULL_BLOCK, BlockTable
from omni_ar.run.limits import MAX_STARTS, Limits
from omni_ar.run.plan import Chunk, StepPlan
from omni_ar.run.request import ArRequest
from omni_ar.run.rows import Row
from omni_ar.run.runner import Runner

_SAMPLING = SamplingParams(
    temperature=1.0,
    top_k=2,
    top_p=0.5,
    min_p=0.1,
    repetition_penalty=2.0,
    frequency_penalty=1.0,
    presence_penalty=1.0,
    logit_bias={0: 1.0},
    seed=0,
    min_tokens=1,
    suppress_token_ids=(0,),
    bad_words_ids=((0, 0),),
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
).over(GREEDY)
"""Everything that sampling can be asked for, but what is proportional to nothing that is large."""


def run_largest_steps(runner: Runner, shape: ArShape, limits: Limits) -> None:
    """Launches a decode of all rows at full length, then as many prompt tokens as a step may have, in the longest chunks behind the
    longest contexts, beside such decodes.

    Every block is the null block, so no page need be there but that one. Leaves the rows' state as no request may find it: the
    runner is not to be used afterwards.
    """
    requests = tuple(_request(row, shape, limits) for row in range(limits.rows))
    # A chunk with context needs a mask, which a whole prompt does not.
    longest = max(limits.max_model_len - 2, 1)
    decodes = list(requests)
    chunks: list[Chunk] = []
    left = limits.max_num_batched_tokens
    while left > 0 and decodes and len(chunks) < MAX_STARTS:
        request = decodes.pop()
        length = min(left, longest)
        chunks.append(Chunk(request, request.length - length, length, first=True, last=True, replay=False))
        left -= length
    for plan in (StepPlan(0, requests), StepPlan(1, tuple(decodes), tuple(chunks))):
        runner.sample_tokens(runner.execute_model(plan))


def _request(row: int, shape: ArShape, limits: Limits) -> ArRequest:
    """As long as may be before its last token, and in want of its hidden states, if there are any."""
    length = limits.max_model_len - 1
    everywhere = np.arange(length if shape.payload_width else 0)
    prompt = Prompt(
        columns=np.zeros((len(shape.prompt_columns), length), np.int64),
        positions=np.broadcast_to(np.arange(length), (shape.position_axes, length)),
        next_position=length,
        payload_positions=everywhere,
    )
    return ArRequest(
        str(row),
        _SAMPLING,
        set(),
        prompt=prompt,
        step_pad=np.zeros(len(shape.step_columns), np.int64),
        row=Row(row, 0),
        table=BlockTable.of(str(row), [NULL_BLOCK] * limits.max_blocks, limits.max_blocks),
        computed=length,
        target=length,
        scheduled=1,
    )
