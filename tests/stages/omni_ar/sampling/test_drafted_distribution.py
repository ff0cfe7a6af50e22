"""The distribution of tokens with drafts is that of plain sampling: chi-square of many draws against transformers' probabilities,
of the token at each place of a run, given the accepted drafts before it."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from omni.device.cpu import CpuDevice
from omni_ar.kernels.step.drafts import accept_drafts
from omni_ar.kernels.step.handoff import NUM_TOKENS, handoff_width
from omni_ar.kernels.step.state import RowState
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.phases import sample_positions
from omni_ar.run.state import allocate_rows
from omni_ar.sampling.pack import flags_of
from tests.stages.omni_ar.sampling.chi_square import chance_of
from tests.support.sampler_bench import reference_logits, reference_warp, resolved, state_of
from tests.support.small_text import SmallText
from tests.support.tiers import SLOW, few

VOCAB, DRAFTS, ROWS = 12, 3, 1000
PROMPT, OUTPUTS = (1, 2, 2, 5), (5, 5, 7)

PARAMETERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 2.5},
    "top-k": {"temperature": 1.0, "top_k": 5},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.2, "min_p": 0.05},
    "top-n-sigma": {"temperature": 2.0, "top_n_sigma": 1.5},
    "all filters": {"temperature": 1.1, "top_k": 9, "top_p": 0.95, "min_p": 0.01, "top_n_sigma": 2.5},
    "repetition penalty": {"temperature": 1.0, "repetition_penalty": 1.8},
    "frequency penalty": {"temperature": 1.0, "frequency_penalty": 0.8},
    "presence penalty": {"temperature": 1.0, "presence_penalty": 1.0},
    "all penalties": {
        "temperature": 0.8,
        "repetition_penalty": 1.3,
        "frequency_penalty": -0.4,
        "presence_penalty": 0.5,
        "top_p": 0.9,
    },
    "bias": {"temperature": 1.0, "logit_bias": {0: 1.5, 3: -1.0, 7: 0.7}},
    "allowed ids": {"temperature": 1.0, "allowed_token_ids": tuple(range(9))},
    "suppressed ids": {"temperature": 1.0, "suppress_token_ids": (10, 11)},
    "stop ids": {"temperature": 1.0, "stop_token_ids": (10,)},
    "min tokens": {"temperature": 1.0, "stop_token_ids": (10, 11), "min_tokens": 5},
    "bad words": {"temperature": 1.0, "bad_words_ids": ((11,), (5, 7, 10), (7, 9))},
    "penalty and top-k": {"temperature": 1.0, "top_k": 6, "frequency_penalty": 0.5},
    "all together": {
        "temperature": 0.9,
        "top_k": 8,
        "top_p": 0.95,
        "repetition_penalty": 1.2,
        "logit_bias": {4: 0.5},
        "suppress_token_ids": (11,),
        "bad_words_ids": ((7, 10),),
    },
}
SETTINGS = [(name, number) for number in range(3) for name in PARAMETERS]


@dataclass(frozen=True)
class Setting:
    """asked: names the parameters. number: decides logits and drafts."""

    asked: str
    number: int

    @cached_property
    def logits_JV(self) -> Tensor:
        return torch.randn(1 + DRAFTS, VOCAB, generator=torch.Generator().manual_seed(self.number))

    @cached_property
    def expected(self) -> tuple[tuple[int, ...], list[NDArray[np.float64]]]:
        """Drafts, and the probabilities of the token at each place. Of each place the draft is the likeliest id that does not stop
        the row, the second or the third, by turns."""
        drafts: tuple[int, ...] = ()
        chances: list[NDArray[np.float64]] = []
        params = resolved(VOCAB, **PARAMETERS[self.asked])
        stops = params.stop_token_ids or ()
        for place, logits_V in enumerate(self.logits_JV):
            ruled_V = reference_logits(logits_V, params, PROMPT, (*OUTPUTS, *drafts))
            chances.append(reference_warp(ruled_V, params).double().softmax(-1).numpy())
            order = [token for token in np.argsort(-chances[-1]).tolist() if token not in stops]
            drafts = (*drafts, order[(place + self.number) % 3])
        return drafts[:DRAFTS], chances

    def draws(self, count: int, share: float = 0.0) -> NDArray[np.int64]:
        """Times that each id is the token at each place, `[J, V]`. share: of draws that accept the first draft whatever was
        drawn."""
        drafts, _ = self.expected
        state = self._state(drafts)
        counted_JV = np.zeros((1 + DRAFTS, VOCAB), np.int64)
        for first in range(0, count, ROWS):
            for sampled_RJ, counts_R in self._batch(state, first, share):
                for place in range(1 + DRAFTS):
                    reached = sampled_RJ[counts_R > place, place].numpy()
                    counted_JV[place] += np.bincount(reached, minlength=VOCAB)
        return counted_JV

    def _state(self, drafts: tuple[int, ...]) -> RowState:
        options = ArOptions(max_num_seqs=ROWS, max_model_len=64, drafter="ngram", draft_tokens=DRAFTS)
        model = SmallText(vocab=VOCAB)
        state = allocate_rows(CpuDevice(), model, Limits.of("text", options, model.shape), torch.float32)
        sampling = state_of(VOCAB, [{**PARAMETERS[self.asked], "seed": 0}] * ROWS, PROMPT, OUTPUTS)
        # Room for more words and biases is not used here, and takes most of the time.
        few_words, few_ids = sampling.bad_words[:, :4], (sampling.bias_ids[:, :4], sampling.biases[:, :4])
        sampling = dataclasses.replace(sampling, bad_words=few_words, bias_ids=few_ids[0], biases=few_ids[1])
        assert state.drafts is not None
        state.drafts.drafts[:ROWS] = torch.tensor(drafts)
        state.columns.limit.fill_(50)
        return dataclasses.replace(state, sampling=sampling)

    def _batch(self, state: RowState, first: int, share: float) -> Iterator[tuple[Tensor, Tensor]]:
        rows_R = torch.arange(ROWS)
        drafts = state.drafts
        assert drafts is not None
        state.sampling.seed.copy_(first + rows_R)
        state.columns.active.fill_(1)
        state.columns.outputs.fill_(len(OUTPUTS))
        drafts.columns.proposed.fill_(DRAFTS)
        drafts.columns.offered.fill_(DRAFTS)
        flags = flags_of(resolved(VOCAB, **PARAMETERS[self.asked]))
        sampled_RJ = torch.empty(ROWS, 1 + DRAFTS, dtype=torch.int64)
        sample_positions(state, self.logits_JV.repeat(ROWS, 1), rows_R, flags, None, (), sampled_RJ)
        biased_R = torch.rand(ROWS, generator=torch.Generator().manual_seed(first)) < share
        sampled_RJ[biased_R, 0] = drafts.drafts[0, 0]
        out_RW = torch.zeros(ROWS, handoff_width(1 + DRAFTS, True), dtype=torch.int64)
        accept_drafts(state, rows_R, sampled_RJ, out_RW)
        yield sampled_RJ, out_RW[:, NUM_TOKENS]


def chance(setting: Setting, count: int, share: float = 0.0) -> float:
    """The p-value of all places together."""
    return chance_of(setting.draws(count, share), setting.expected[1])


@pytest.mark.parametrize(("asked", "number"), few(0, SETTINGS, SLOW))
def test_200_000_draws_are_distributed_as_plain_ones(asked: str, number: int):
    setting = Setting(asked, number)
    drawn_JV = setting.draws(200_000)
    assert chance_of(drawn_JV, setting.expected[1]) > 0.001
    assert drawn_JV.sum(1).min() > 100, "each place is reached"


@pytest.mark.parametrize(("asked", "number"), few(0, SETTINGS, SLOW))
def test_a_bias_of_two_percent_fails(asked: str, number: int):
    assert chance(Setting(asked, number), 200_000, share=0.02) < 0.001


@pytest.mark.parametrize("asked", ["temperature", "all filters", "all penalties"])
def test_draws_are_distributed_as_plain_ones(asked: str):
    setting = Setting(asked, 1)
    assert chance(setting, 20_000) > 0.001
    assert chance(setting, 20_000, share=0.06) < 0.001


@pytest.mark.parametrize("asked", few(2, ["frequency penalty", "repetition penalty", "bad words"], SLOW))
def test_the_history_of_drafts_matters_to_the_distribution(asked: str):
    """Without the drafts before it, a place has other probabilities."""
    setting = Setting(asked, 0)
    params = resolved(VOCAB, **PARAMETERS[asked])
    drawn_JV = setting.draws(20_000)
    forgetful = [
        reference_warp(reference_logits(logits_V, params, PROMPT, OUTPUTS), params).double().softmax(-1).numpy()
        for logits_V in setting.logits_JV
    ]
    assert chance_of(drawn_JV, forgetful) < 0.001
