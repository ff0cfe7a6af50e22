"""Sampling at the positions of drafts: a row's draws after its earlier drafts, and their kernels."""

from typing import Any

import pytest
import torch

from omni_ar.kernels.sampling import fused_sample
from omni_ar.kernels.sampling.state import EVERYTHING
from omni_ar.sampling.sampler import sample, sample_drafted
from tests.support.sampler_bench import assert_same_ids, moved, noisy_logits, state_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

ROWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 2**63 - 1},
    {"temperature": 1.1, "seed": 3, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.5, "seed": 10, "top_n_sigma": 1.0},
    {"repetition_penalty": 1.7, "frequency_penalty": 0.5, "presence_penalty": 0.25},
    {"temperature": 1.2, "seed": 5, "repetition_penalty": 5.0},
    {"temperature": 0.7, "seed": 6, "frequency_penalty": 2.0},
    {"temperature": 1.0, "seed": 7, "presence_penalty": 2.0, "logit_bias": {3: 2.0, 5: -2.0}},
    {"temperature": 1.0, "seed": 8, "bad_words_ids": ((3,), (2, 7), (7, 2, 9), (5, 7, 2, 3, 11))},
    {"min_tokens": 5, "stop_token_ids": (1, 2), "logit_bias": {1: 50.0}},
    {"temperature": 1.0, "seed": 9, "allowed_token_ids": (0, 2, 4, 6, 7, 11), "frequency_penalty": 1.0},
]
PROMPT, OUTPUTS = (1, 2, 2, 5), (5, 5, 7)
DRAFTS = ((2, 7, 2), (7, 7, 7), (2, 3, 11), (9, 2, 99))
"""The last id is not in a vocabulary of 37."""


@pytest.mark.parametrize("drafts", DRAFTS[:3])
def test_a_position_draws_as_its_row_after_the_drafts(drafts: tuple[int, ...]):
    vocab = 37
    state, positions = state_of(vocab, ROWS, PROMPT, OUTPUTS), 1 + len(drafts)
    logits_XV = torch.randn(len(ROWS) * positions, vocab, generator=torch.Generator().manual_seed(2)) * 2
    logits_XV[:, [2, 3, 7, 9, 11]] += 4  # ids that drafts, penalties and bad words are about
    rows_R = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(3))
    position_R = torch.full_like(rows_R, len(OUTPUTS))
    drafts_RK = torch.tensor([drafts] * len(ROWS))
    given_RJ = sample_drafted(logits_XV, state, rows_R, position_R, drafts_RK, EVERYTHING).view(-1, positions)
    changed = 0
    for at in range(positions):
        after = state_of(vocab, ROWS, PROMPT, (*OUTPUTS, *drafts[:at]))
        logits_RV = logits_XV.view(-1, positions, vocab)[:, at]
        expected_R = sample(logits_RV, after, rows_R, position_R + at, EVERYTHING)
        assert given_RJ[:, at].tolist() == expected_R.tolist(), at
        without_drafts = sample(logits_RV, state, rows_R, position_R + at, EVERYTHING)
        changed += int((without_drafts != expected_R).sum())
    assert changed, "the drafts make a difference"


def check_kernel(vocab: int, device: str) -> None:
    state, positions = state_of(vocab, ROWS, PROMPT, OUTPUTS), 1 + len(DRAFTS[0])
    generator = torch.Generator().manual_seed(vocab)
    rows_R = torch.randperm(len(ROWS), generator=generator)
    drafts_NK = torch.tensor([DRAFTS[row % len(DRAFTS)] for row in range(len(ROWS))])
    logits_XV = torch.randn(len(ROWS) * positions, vocab, generator=generator) * 2
    logits_XV[:, [2, 3, 7, 9, 11]] += 4
    position_R = torch.full_like(rows_R, len(OUTPUTS))
    expected_X = sample_drafted(logits_XV, state, rows_R, position_R, drafts_NK[rows_R], EVERYTHING)
    there, outputs_N = moved(state, device), torch.full_like(rows_R, len(OUTPUTS))
    given_X = fused_sample(
        logits_XV.to(device),
        there,
        rows_R.to(device),
        outputs_N.to(device),
        by_row=True,
        out_R=torch.empty(len(expected_X), dtype=torch.int64, device=device),
        drafts_NK=drafts_NK.to(device),
    ).cpu()
    for at_X, (given, expected) in enumerate(zip(given_X, expected_X, strict=True)):
        place, at = divmod(at_X, positions)
        row = rows_R[[place]]
        before = DRAFTS[int(row) % len(DRAFTS)][:at]
        if max(before, default=0) >= vocab:
            assert given == expected
            continue
        after, position = state_of(vocab, ROWS, PROMPT, (*OUTPUTS, *before)), position_R[:1] + at
        assert_same_ids(given[None], expected[None], noisy_logits(logits_XV[[at_X]], after, row, position))
    assert expected_X.unique().numel() > 9


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_of_a_narrow_row(device: str):
    check_kernel(37, device)


@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_of_a_wide_row(device: str, small_capacity: None):
    check_kernel(100, device)
