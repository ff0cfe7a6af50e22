"""Log-probabilities against float64 arithmetic by numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_ar.sampling import top_logprobs


def float64_logprobs(logits_RV):
    values = logits_RV.double().numpy()
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@given(
    st.integers(1, 5), st.integers(1, 60), st.integers(0, 2**31), st.sampled_from([1.0, 30.0]),
    st.sampled_from([0.0, -4000.0]), st.data(),
)  # fmt: skip
def test_they_are_those_of_float64(rows, vocab, seed, scale, offset, data):
    logits_RV = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale + offset
    k = data.draw(st.integers(0, min(vocab, 20)))
    ids_R = torch.tensor([data.draw(st.integers(0, vocab - 1)) for _ in range(rows)])
    ids, logprobs, ranks = top_logprobs(logits_RV, ids_R, k)
    assert (ids.shape, logprobs.shape, ranks.shape) == ((rows, 1 + k), (rows, 1 + k), (rows,))
    assert (ids.dtype, logprobs.dtype, ranks.dtype) == (torch.int64, torch.float32, torch.int64)
    expected = float64_logprobs(logits_RV)
    assert ids[:, 0].tolist() == ids_R.tolist()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, ids.numpy(), 1), atol=1e-5, rtol=1e-6)
    best = -np.sort(-expected, 1)[:, :k]
    np.testing.assert_allclose(logprobs[:, 1:], best, atol=1e-5, rtol=1e-6)
    for row in range(rows):
        assert len(set(ids[row, 1:].tolist())) == k
        likelier = (logits_RV[row] > logits_RV[row, ids_R[row]]).sum().item()
        assert ranks[row].item() <= likelier + 1  # float32 may round two log-probabilities to one
        assert ranks[row].item() == 1 + (logits_RV[row].log_softmax(-1) > logprobs[row, 0]).sum().item()


@pytest.mark.parametrize("k", [0, 1, 3])
def test_ids_that_tie_share_a_rank(k):
    _, _, ranks = top_logprobs(torch.tensor([[1.0, 2.0, 2.0, 0.0]] * 4), torch.arange(4), k)
    assert ranks.tolist() == [3, 1, 1, 4]
