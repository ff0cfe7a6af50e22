"""The upload buffer holds the largest step, and an upload has exactly the size that was computed for it."""

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from omni.device import Upload, Uploader
from omni.device.cpu import CpuDevice
from omni.sampling import MAX_LOGPROBS, LogitsEdit
from omni_ar.drafters.ngram import NgramDrafter
from omni_ar.inputs import Prompt
from omni_ar.kernels.sampling.state import MAX_BAD_WORD_LENGTH, MAX_BAD_WORDS, MAX_BIASED_IDS, MAX_STOP_IDS
from omni_ar.model import ArShape
from omni_ar.options import ArOptions
from omni_ar.processors import LogitsProcessor, NamedProcessor, ProcessedRows
from omni_ar.run.blocks.pool import BlockTable
from omni_ar.run.limits import MAX_STARTS, Limits, step_fields
from omni_ar.run.pack import pack_step
from omni_ar.run.plan import NewBlock, PrefillChunk, StepPlan
from omni_ar.run.request import ArRequest, Row
from omni_ar.sampling.edits import MAX_EDITED_IDS, bitmask_size, edit_size, merge_edits, pack_edits
from omni_ar.sampling.pack import StartingRow, pack_sampling, start_size
from tests.stages.omni_ar.small_drafts import draft_setup
from tests.support.sampler_bench import resolved
from tests.support.small_text import SmallText

VOCAB = 2000
LENGTH = 96
"""Of a request at most."""


class Three(LogitsProcessor):
    width = 3

    def pack(self, args: object, vocab_size: int) -> tuple[float, ...]:
        return (1.0, 2.0, 3.0)

    def apply(self, logits_RV: Tensor, rows: ProcessedRows) -> Tensor:
        return logits_RV


PROCESSORS = (NamedProcessor("three", Three(), 3), NamedProcessor("more", Three(), 3))
EVERYTHING = resolved(
    VOCAB,
    temperature=0.5,
    top_k=3,
    top_p=0.5,
    min_p=0.1,
    top_n_sigma=2.0,
    repetition_penalty=1.5,
    frequency_penalty=0.5,
    presence_penalty=0.5,
    logit_bias=dict.fromkeys(range(MAX_BIASED_IDS), 1.0),
    min_tokens=2,
    stop_token_ids=tuple(range(MAX_STOP_IDS)),
    suppress_token_ids=tuple(range(100)),
    bad_words_ids=tuple((i, *range(MAX_BAD_WORD_LENGTH - 1)) for i in range(MAX_BAD_WORDS)),
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
)
"""All that a row can be given, at its maximum."""


def starting(row: int) -> StartingRow:
    """As many different tokens generated as a row may have."""
    ids = np.arange(LENGTH)
    params = {processor.name: (1.0, 2.0, 3.0) for processor in PROCESSORS}
    return StartingRow(row, EVERYTHING, ids, ids, range(LENGTH), params=params)


def edit() -> LogitsEdit:
    """A mask and as many ids as a step may have."""
    ids = np.arange(MAX_EDITED_IDS)
    return merge_edits([LogitsEdit(np.full(bitmask_size(VOCAB), -1), ids, np.ones(len(ids), np.float32))], VOCAB)


def upload_of(size: int) -> Upload:
    device = CpuDevice()
    return Uploader(device, device.stream("test"), size, 1).begin()


def assert_fills(size: int, pack: Callable[[Upload], object]) -> None:
    """The packed step needs an upload of this size, and no smaller one."""
    upload = upload_of(size)
    pack(upload)
    assert upload.size == size
    with pytest.raises(RuntimeError, match=f"the arrays take {size} values, the upload buffer has {size - 1}"):
        pack(upload_of(size - 1))


@pytest.mark.parametrize("rows", [1, 5, MAX_STARTS])
def test_rows_that_start_with_everything_and_edits_fill_the_counted_upload(rows: int) -> None:
    starts, edits = [starting(row) for row in range(rows)], [(place, edit()) for place in range(rows)]
    size = rows * start_size(VOCAB, LENGTH, PROCESSORS)
    assert_fills(size, lambda upload: pack_sampling(upload, starts, VOCAB, PROCESSORS))
    assert_fills(edit_size(VOCAB, rows), lambda upload: pack_edits(upload, edits, VOCAB))


def shape_of(columns: int) -> ArShape:
    """columns: of the prompt; a model of several is conditioned too."""
    return ArShape(
        num_layers=1,
        num_kv_heads=1,
        head_dim=4,
        hidden_width=4,
        vocab_size=VOCAB,
        max_positions=LENGTH,
        position_axes=3,
        prompt_columns=("ids", *map(str, range(1, columns))),
        step_columns=("text",) if columns > 1 else (),
        step_width=4 if columns > 1 else 0,
        payload_width=4,
        emits_tokens=True,
    )


def request(row: int, shape: ArShape, limits: Limits, length: int, outputs: int) -> ArRequest:
    ids = np.arange(length)
    prompt = Prompt(
        columns=np.broadcast_to(ids, (len(shape.prompt_columns), length)),
        positions=np.broadcast_to(ids, (shape.position_axes, length)),
        next_position=length,
        penalized_ids=ids,
        payload_positions=ids,
    )
    return ArRequest(
        str(row),
        EVERYTHING,
        set(),
        prompt=prompt,
        params={processor.name: (1.0, 2.0, 3.0) for processor in PROCESSORS},
        step_pad=np.zeros(step_fields(shape), np.int64),
        row=Row(row, 0),
        table=BlockTable.of(str(row), range(1, limits.max_blocks + 1), limits.max_blocks),
        edit=edit(),
        outputs=list(range(outputs)),
        num_scheduled_outputs=outputs,
        num_computed_tokens=length,
        prefill_end=length + outputs,
    )


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(("rows", "budget"), [(1, 95), (MAX_STARTS, 400), (MAX_STARTS + 5, 800), (20, 8)])
@pytest.mark.parametrize("replayed", [False, True])
def test_the_largest_step_fits(rows: int, budget: int, columns: int, replayed: bool) -> None:
    """As many rows start as may, with everything, and all others decode, get a block and are constrained."""
    shape = shape_of(columns)
    options = ArOptions(max_num_seqs=rows, max_num_batched_tokens=budget, block_size=1)
    limits = Limits.of("text", options, shape, PROCESSORS)
    starts = min(rows, MAX_STARTS)
    decodes = [request(row, shape, limits, 2, LENGTH - 3) for row in range(starts, rows)]
    length = max(1, min(LENGTH - 2, (budget - len(decodes)) // starts))
    chunks = []
    for row in range(starts):
        # A replay's other tokens are in the prefix cache.
        one = request(row, shape, limits, 1, LENGTH - 2) if replayed else request(row, shape, limits, length, 0)
        chunks.append(PrefillChunk(one, one.prefill_end - length, length, first=True, last=True, replay=replayed))
    new_blocks = [NewBlock(one, place) for one in decodes for place in (0, 1)][: rows + len(decodes)]
    plan = StepPlan(1, tuple(decodes), tuple(chunks), tuple(new_blocks))
    upload = upload_of(limits.upload_size)
    pack_step(upload, plan, limits=limits, shape=shape, processors=PROCESSORS, padded_rows=rows)
    assert upload.size <= limits.upload_size
    assert_fills(
        upload.size,
        lambda upload: pack_step(upload, plan, limits=limits, shape=shape, processors=PROCESSORS, padded_rows=rows),
    )


@pytest.mark.parametrize("drafts", [1, 15])
@pytest.mark.parametrize("block_size", [1, 4])
def test_the_largest_step_of_a_stage_with_a_drafter_fits(drafts: int, block_size: int) -> None:
    """Rows that start bring their texts. All others get the blocks of a step with drafts and one more, which is allocated early."""
    shape, rows = shape_of(1), 200
    options = ArOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=MAX_STARTS,
        block_size=block_size,
        drafter="ngram",
        draft_tokens=drafts,
    )
    limits = Limits.of("text", options, shape, PROCESSORS)
    drafter = NgramDrafter({}, draft_setup(SmallText(vocab=VOCAB), drafts))
    decodes = [request(row, shape, limits, 2, LENGTH - 3) for row in range(MAX_STARTS, rows)]
    starts = [request(row, shape, limits, 1, LENGTH - 2) for row in range(MAX_STARTS)]
    chunks = [PrefillChunk(one, one.prefill_end - 1, 1, first=True, last=True, replay=True) for one in starts]
    new_blocks = [NewBlock(one, place) for one in decodes for place in range(1 + -(-(1 + drafts) // block_size))]
    plan = StepPlan(1, tuple(decodes), tuple(chunks), tuple(new_blocks))
    upload = upload_of(limits.upload_size)
    pack_step(upload, plan, limits=limits, shape=shape, processors=PROCESSORS, padded_rows=rows, drafter=drafter)
    assert 0.99 * limits.upload_size < upload.size <= limits.upload_size, "and hardly more is allocated"
