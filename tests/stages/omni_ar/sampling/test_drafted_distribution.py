"""The distribution of tokens with drafts is that of plain sampling: chi-square of many draws against transformers' probabilities,
of the token at each place of a run, given the tokens before it and the draft in its place."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
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
Text = tuple[int, ...]
Drawn = dict[tuple[Text, int], NDArray[np.int64]]
"""Times that each id follows a text where a draft has its place, `[V]`: the draft attracts no id."""
Bias = Callable[[Tensor, Tensor, Tensor], None]


def accepts_any_draft(sampled_RJ: Tensor, drafts_RK: Tensor, is_biased_R: Tensor) -> None:
    """The biased rows accept all drafts, and continue behind tokens that are not these."""
    drafts_RK[is_biased_R] = sampled_RJ[is_biased_R, :DRAFTS]


def draws_the_draft(sampled_RJ: Tensor, drafts_RK: Tensor, is_biased_R: Tensor) -> None:
    """The first token of the biased rows is their draft, whatever was drawn."""
    sampled_RJ[is_biased_R, 0] = drafts_RK[is_biased_R, 0]


BIASES = (accepts_any_draft, draws_the_draft)


@dataclass(frozen=True)
class Setting:
    """asked: names the parameters. number: decides logits and drafts."""

    asked: str
    number: int

    @cached_property
    def logits_JUV(self) -> Tensor:
        """At each place, after each token: a run that continues behind another token than its draft has other probabilities."""
        return torch.randn(1 + DRAFTS, VOCAB, VOCAB, generator=torch.Generator().manual_seed(self.number))

    def chances(self, text: Text, forgets: bool = False) -> NDArray[np.float64]:
        """Probabilities of the token after `text`. forgets: whether penalties and the like leave `text` out."""
        params = resolved(VOCAB, **PARAMETERS[self.asked])
        logits_V = self.logits_JUV[len(text), (*OUTPUTS, *text)[-1]]
        ruled_V = reference_logits(logits_V, params, PROMPT, OUTPUTS if forgets else (*OUTPUTS, *text))
        return reference_warp(ruled_V, params).double().softmax(-1).numpy()

    @cached_property
    def drafts_NK(self) -> Tensor:
        """What rows draft, with equal probability. At each place half of them draft the likeliest id that does not stop the row, so
        that later places are reached; the others draft the third, or the least likely that is possible."""
        stops = resolved(VOCAB, **PARAMETERS[self.asked]).stop_token_ids or ()

        @cache
        def choices(text: Text) -> tuple[int, int, int]:
            chances_V = self.chances(text)
            order = [token for token in np.argsort(-chances_V).tolist() if token not in stops and chances_V[token]]
            return order[0], order[min(2, len(order) - 1)], order[-1]

        found: list[Text] = []
        for picks in itertools.product((0, 0, 1, 2), repeat=DRAFTS):
            text: Text = ()
            for pick in picks:
                text = (*text, choices(text)[pick])
            found.append(text)
        return torch.tensor(found)

    def draws(self, count: int, bias: Bias | None = None, share: float = 0.0) -> Drawn:
        """share: of draws with the bias."""
        state = self._state()
        counted = [np.zeros((VOCAB ** (place + 1), VOCAB), np.int64) for place in range(1 + DRAFTS)]
        for first in range(0, count, ROWS):
            sampled_RJ, drafts_RJ, counts_R = self._batch(state, first, bias, share)
            text_R = np.zeros(ROWS, np.int64)
            for place, (token_R, draft_R) in enumerate(zip(sampled_RJ.T, drafts_RJ.T, strict=True)):
                cell_R = ((text_R * VOCAB + draft_R) * VOCAB + token_R)[counts_R > place]
                counted[place] += np.bincount(cell_R, minlength=counted[place].size).reshape(-1, VOCAB)
                text_R = text_R * VOCAB + token_R
        return dict(_by_text(counted))

    def chance(self, drawn: Drawn, forgets: bool = False) -> float:
        """The p-value of all places together."""
        return chance_of(drawn.values(), [self.chances(text, forgets) for text, _ in drawn])

    def _state(self) -> RowState:
        options = ArOptions(max_num_seqs=ROWS, max_model_len=64, drafter="ngram", draft_tokens=DRAFTS)
        model = SmallText(vocab=VOCAB)
        state = allocate_rows(CpuDevice(), model, Limits.of("text", options, model.shape), torch.float32)
        sampling = state_of(VOCAB, [{**PARAMETERS[self.asked], "seed": 0}] * ROWS, PROMPT, OUTPUTS)
        # Columns for more words and biases are not used here, and take most of the time.
        few_words, few_ids = sampling.bad_words[:, :4], (sampling.bias_ids[:, :4], sampling.biases[:, :4])
        sampling = dataclasses.replace(sampling, bad_words=few_words, bias_ids=few_ids[0], biases=few_ids[1])
        state.columns.limit.fill_(50)
        return dataclasses.replace(state, sampling=sampling)

    def _batch(
        self, state: RowState, first: int, bias: Bias | None, share: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """What rows draw at each place, their drafts there, 0 at the last, and how many tokens each accepts."""
        rows_R, draw = torch.arange(ROWS), torch.Generator().manual_seed(first)
        drafts = state.drafts
        assert drafts is not None
        drafts_RK = self.drafts_NK[torch.randint(len(self.drafts_NK), (ROWS,), generator=draw)]
        drafts.drafts[:ROWS] = drafts_RK
        state.sampling.seed.copy_(first + rows_R)
        state.columns.active.fill_(1)
        state.columns.outputs.fill_(len(OUTPUTS))
        drafts.columns.proposed.fill_(DRAFTS)
        drafts.columns.offered.fill_(DRAFTS)
        flags = flags_of(resolved(VOCAB, **PARAMETERS[self.asked]))
        sampled_RJ = torch.empty(ROWS, 1 + DRAFTS, dtype=torch.int64)
        before_RJ = torch.cat([torch.full((ROWS, 1), OUTPUTS[-1]), drafts_RK], 1)
        logits_RJV = self.logits_JUV[torch.arange(1 + DRAFTS), before_RJ]
        sample_positions(state, logits_RJV.flatten(0, 1), rows_R, flags, None, (), sampled_RJ)
        if bias is not None:
            bias(sampled_RJ, drafts.drafts[:ROWS], torch.rand(ROWS, generator=draw) < share)
        out_RW = torch.zeros(ROWS, handoff_width(1 + DRAFTS, True), dtype=torch.int64)
        accept_drafts(state, rows_R, sampled_RJ, out_RW)
        drafts_RJ = torch.cat([drafts_RK, torch.zeros(ROWS, 1, dtype=torch.int64)], 1)
        return sampled_RJ.numpy(), drafts_RJ.numpy(), out_RW[:, NUM_TOKENS].numpy()


def _by_text(counted: list[NDArray[np.int64]]) -> Iterator[tuple[tuple[Text, int], NDArray[np.int64]]]:
    for place, counts_NV in enumerate(counted):
        for code in np.flatnonzero(counts_NV.any(1)).tolist():
            *text, draft = (code // VOCAB**at % VOCAB for at in reversed(range(place + 1)))
            yield (tuple(text), draft), counts_NV[code]


@pytest.mark.parametrize(("asked", "number"), few(0, SETTINGS, SLOW))
def test_200_000_draws_are_distributed_as_plain_ones(asked: str, number: int):
    setting = Setting(asked, number)
    drawn = setting.draws(200_000)
    assert setting.chance(drawn) > 0.001
    reached = [sum(each.sum() for (text, _), each in drawn.items() if len(text) == n) for n in range(1 + DRAFTS)]
    assert min(reached) > 100, "each place is reached"


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize(("asked", "number"), few(0, SETTINGS, SLOW))
def test_a_bias_of_two_percent_fails(asked: str, number: int, bias: Bias):
    setting = Setting(asked, number)
    assert setting.chance(setting.draws(200_000, bias, share=0.02)) < 0.001


@pytest.mark.parametrize("asked", ["temperature", "all filters", "all penalties"])
def test_draws_are_distributed_as_plain_ones(asked: str):
    setting = Setting(asked, 1)
    assert setting.chance(setting.draws(40_000)) > 0.001
    for bias in BIASES:
        assert setting.chance(setting.draws(40_000, bias, share=0.02)) < 0.001


@pytest.mark.parametrize("asked", few(2, ["frequency penalty", "repetition penalty", "bad words"], SLOW))
def test_the_history_of_drafts_matters_to_the_distribution(asked: str):
    """Without the drafts before it, a place has other probabilities."""
    setting = Setting(asked, 1)
    assert setting.chance(setting.draws(60_000), forgets=True) < 0.001
