"""Whether steps verify drafts, by their cost for models of several shapes."""

from dataclasses import replace

import pytest

from omni_ar.kernels.step.draft_state import RATE_ONE, worthwhile_drafts
from omni_ar.layers.decoder import DecoderConfig
from omni_ar.layers.text_model import decoder_shape
from omni_ar.model import ExpertShape, PassWeights
from omni_ar.run.draft_policy import DraftPolicy

DENSE = DraftPolicy(drafts=3, weights=PassWeights(16_400_000_000, 36), adaptive=True)
EXPERTS = DraftPolicy(drafts=3, weights=PassWeights(61_000_000_000, 48, ExpertShape(128, 8, 24.0)), adaptive=True)
FREE = PassWeights(0, 0)
"""Of a drafter whose passes take no time."""


def gain(rate: float, policy: DraftPolicy = DENSE, rows: int = 1) -> int:
    """That a row reports, one of `rows` with this rate."""
    costs = policy.costs(rows)
    return worthwhile_drafts(int(rate * RATE_ONE), 3, 3, 0 if costs is None else costs[rows])[1]


def test_the_gain_is_the_expected_number_of_accepted_drafts():
    assert gain(0.5) == RATE_ONE * 7 // 8
    assert worthwhile_drafts(RATE_ONE // 2, 1, 3, 0) == (1, RATE_ONE // 2)
    assert gain(1.0) == 3 * RATE_ONE
    assert gain(0.0) == 0


def test_drafts_are_verified_up_to_the_first_that_is_not_worth_its_cost():
    """A draft reads further experts, by which those of a row alone cost most. All are verified where others read them anyway."""
    costs = EXPERTS.costs(64)
    assert costs is not None
    assert DENSE.costs(64) is None
    assert costs[0] == costs[1] > costs[8] > costs[16] > costs[64] > 0
    rates = (0.9, 0.6, 0.5, 0.3, 0.2, 0.14)
    alone, many = ([worthwhile_drafts(int(rate * RATE_ONE), 3, 3, cost)[0] for rate in rates] for cost in costs[1::63])
    assert alone == [3, 3, 2, 1, 1, 0]
    assert many == [3, 3, 3, 3, 3, 0]
    assert worthwhile_drafts(RATE_ONE * 9 // 10, 8, 8, costs[1])[0] == 8
    assert worthwhile_drafts(RATE_ONE * 7 // 10, 8, 8, costs[1])[0] == 5
    number, net = worthwhile_drafts(RATE_ONE // 2, 3, 3, costs[1])
    assert (number, net) == (2, RATE_ONE * 3 // 4 - 2 * costs[1])


@pytest.mark.parametrize(("rate", "pays"), [(0.3, False), (0.45, False), (0.62, True), (0.7, True)])
def test_a_row_alone_reads_further_experts_for_drafts_that_are_likely(rate: float, pays: bool):
    """Four tokens read more than three times the experts of one."""
    assert EXPERTS.pays([gain(rate, EXPERTS)]) is pays
    assert DENSE.pays([gain(rate)])


def test_where_all_experts_are_read_anyway_drafts_cost_little():
    added = [EXPERTS.added_time(rows) for rows in (1, 2, 4, 8, 16, 32, 64)]
    assert added[0] < added[1] < added[2]
    assert added[2:] == sorted(added[2:], reverse=True)
    assert DENSE.added_time(1) < added[-1] < 0.3
    assert EXPERTS.pays([gain(0.3, EXPERTS, 32)] * 32)
    assert not EXPERTS.pays([gain(0.3, EXPERTS, 4)] * 4)


def test_one_row_with_good_drafts_does_not_slow_down_many_without():
    assert DENSE.pays([gain(0.9)] + [0] * 7)
    assert not DENSE.pays([gain(0.9)] + [0] * 31)
    assert not DENSE.pays([0, 0])
    assert not DENSE.pays([])


def test_drafts_that_do_not_adapt_are_always_verified():
    """A row without drafts, such as one with a grammar, reports no gain; with it alone there are none to verify."""
    always = replace(EXPERTS, adaptive=False)
    assert always.pays([always.start_gain(7), 0, 0, 0, 0, 0, 0])
    assert not always.pays([0])


@pytest.mark.parametrize(("has_weights", "starts"), [(False, False), (True, True)])
def test_a_drafter_without_weights_proves_itself_where_drafts_cost_much(has_weights: bool, starts: bool):
    """Its first draft is compared with the token in every step. One with weights makes none in steps that verify none."""
    policy = replace(EXPERTS, drafter=FREE if has_weights else None)
    assert policy.pays([policy.start_gain(1)]) is starts
    assert DENSE.pays([DENSE.start_gain(1)])


def test_the_size_of_experts_follows_from_the_configuration():
    """Of Qwen3-30B-A3B: 29.0 billion parameters in experts, 1.2 billion others but for the embeddings."""
    config = DecoderConfig(
        width=2048,
        num_layers=48,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        mlp_width=6144,
        max_positions=40_960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        num_experts=128,
        top_k=8,
        expert_width=768,
    )
    experts = decoder_shape(config, 151_936).experts
    assert experts is not None
    assert experts.weights == pytest.approx(28.99e9 / 1.23e9, rel=0.01)
    assert (experts.num_experts, experts.top_k) == (128, 8)
    assert experts.share_used(1) == pytest.approx(8 / 128)


def test_positions_take_time_of_their_own():
    """Those of many rows, and many drafts, are multiplied by all weights of a dense model; in a mixture, by a few experts each."""
    assert 0.2 < DENSE.added_time(1) < 0.22
    assert DENSE.added_time(128) > 4 * DENSE.added_time(1)
    assert replace(DENSE, drafts=15).added_time(64) > 2.5
    assert EXPERTS.added_time(128) < 0.4
