"""Edits by host processors: bits, sums, and refusals before they reach the device."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni.sampling import LogitsEdit
from omni_ar.sampling.edits import (
    MAX_EDITED_IDS,
    bitmask_size,
    check_edit,
    edit_size,
    merge_edits,
    pack_bitmask,
    unpack_bitmask,
)
from tests.support.sampler_bench import SamplerBench, resolved, starting

VOCAB = 130


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_packed_bits_are_unpacked_unchanged(members):
    words = pack_bitmask(np.array(members))
    assert words.dtype == np.int64
    # Python's integers give the bit of each id.
    as_integer = sum((int(word) % 2**64) << 64 * place for place, word in enumerate(words))
    assert [bool(as_integer >> i & 1) for i in range(len(members))] == members
    assert as_integer >> len(members) == 0
    assert unpack_bitmask(torch.from_numpy(words)[None], len(members)).tolist() == [members]


def edit(allowed=None, **bias):
    """bias: the addend of each id (as `i<id>`)."""
    mask = pack_bitmask(np.isin(np.arange(VOCAB), allowed)) if allowed is not None else None
    if not bias:
        return LogitsEdit(mask)
    ids = np.array([int(name[1:]) for name in bias], np.int64)
    return LogitsEdit(mask, ids, np.array(list(bias.values()), np.float32))


def greedy_bench(rows=3):
    bench = SamplerBench(VOCAB, rows)
    bench.start([starting(row, resolved(VOCAB)) for row in range(rows)])
    return bench


def test_masks_and_biases_reach_their_rows_and_no_others():
    bench = greedy_bench(4)
    logits_RV = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    edits = [(1, edit([5, 129, 64])), (2, edit(i7=50.0)), (3, edit([8, 9], i9=-np.inf, i0=90.0))]
    chosen = bench.sample(logits_RV, [0, 1, 2, 3], [0] * 4, edits)
    assert chosen == [int(logits_RV[0].argmax()), max((5, 129, 64), key=lambda i: logits_RV[1, i].item()), 7, 8]


def test_a_row_without_a_possible_id_affects_no_other_row():
    bench = greedy_bench()
    logits_RV = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    best = logits_RV.argmax(-1).tolist()
    assert bench.sample(logits_RV, [0, 1, 2], [0] * 3, [(1, edit([]))]) == [best[0], -1, best[2]]
    assert bench.sample(logits_RV, [0, 1, 2], [0] * 3, [(2, edit([4], i4=-np.inf))]) == [*best[:2], -1]


def test_a_drawn_row_without_a_possible_id_yields_none():
    bench = SamplerBench(VOCAB, 1)
    bench.start([starting(0, resolved(VOCAB, temperature=1.0, top_k=5, top_p=0.9, min_p=0.1))])
    assert bench.sample(torch.zeros(1, VOCAB), [0], [0], [(0, edit([]))]) == [-1]
    assert bench.sample(torch.zeros(1, VOCAB), [0], [0], [(0, edit([77]))]) == [77]


def test_edits_of_several_processors_intersect_and_add_up():
    merged = merge_edits([edit([1, 2, 3]), edit(None, i2=1.5, i4=1.0), edit([2, 3, 4], i2=2.0)], VOCAB)
    assert unpack_bitmask(torch.from_numpy(merged.allowed)[None], VOCAB)[0].nonzero().flatten().tolist() == [2, 3]
    assert merged.ids is not None
    assert merged.bias is not None
    assert dict(zip(merged.ids.tolist(), merged.bias.tolist(), strict=True)) == {2: 3.5, 4: 1.0}
    nothing = merge_edits([], VOCAB)
    assert (nothing.allowed, nothing.ids, nothing.bias) == (None, None, None)


@pytest.mark.parametrize("known", [1, 64, 100, 500])
def test_a_tokenizer_may_know_fewer_ids_than_the_model_or_more(known):
    merged = merge_edits([LogitsEdit(pack_bitmask(np.ones(known, np.bool_)))], VOCAB)
    assert unpack_bitmask(torch.from_numpy(merged.allowed)[None], VOCAB)[0].tolist() == [
        i < known for i in range(VOCAB)
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (LogitsEdit(np.zeros((1, 3), np.int64)), r"allowed is int64 \[1, 3\], not int64 \[3\]"),
        (LogitsEdit(np.zeros(3, np.int32)), "allowed is int32"),
        (LogitsEdit(ids=np.zeros(1, np.int64)), "go together"),
        (LogitsEdit(ids=np.zeros(1, np.int32), bias=np.zeros(1, np.float32)), "ids are int32"),
        (LogitsEdit(ids=np.zeros(1, np.int64), bias=np.zeros(2, np.float32)), r"bias is float32 \[2\]"),
        (LogitsEdit(ids=np.zeros(1, np.int64), bias=np.zeros(1, np.int64)), "bias is int64"),
        (LogitsEdit(ids=np.array([VOCAB]), bias=np.zeros(1, np.float32)), "reach from 130 to 130"),
        (LogitsEdit(ids=np.array([-1]), bias=np.zeros(1, np.float32)), "reach from -1 to -1"),
        (LogitsEdit(ids=np.array([1]), bias=np.array([np.nan], np.float32)), "must be finite"),
        (LogitsEdit(ids=np.array([1]), bias=np.array([np.inf], np.float32)), "must be finite"),
    ],
)
def test_an_edit_that_could_harm_others_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        check_edit(wrong, VOCAB)


def test_edits_take_no_more_of_the_upload_than_they_may():
    vocab = 3000
    ids = np.arange(MAX_EDITED_IDS)
    full = LogitsEdit(np.full(bitmask_size(vocab), -1), ids, np.zeros(len(ids), np.float32))
    merged = merge_edits([full, full], vocab).ids
    assert merged is not None
    assert len(merged) == MAX_EDITED_IDS
    assert 2 * (1 + bitmask_size(vocab) + 3 * MAX_EDITED_IDS) == edit_size(vocab, 2)
    one_more = LogitsEdit(ids=np.array([MAX_EDITED_IDS]), bias=np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="at most 1024"):
        merge_edits([full, one_more], vocab)
