"""The generator against published vectors and exact integers; the noise against its distribution and its keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_ar.sampling.rng import gumbel, open_uniform, philox4x32

WORD = st.integers(0, 2**32 - 1)

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter, key):
    a, b, c, d, k, m = (torch.tensor([word]) for word in (*counter, *key))
    return tuple(int(word) for word in philox4x32((a, b, c, d), (k, m)))


def philox_of_integers(counter, key):
    (a, b, c, d), (k, m) = counter, key
    for round_ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        k_r, m_r = (k + round_ * 0x9E3779B9) % 2**32, (m + round_ * 0xBB67AE85) % 2**32
        a, b, c, d = (right // 2**32) ^ b ^ k_r, right % 2**32, (left // 2**32) ^ d ^ m_r, left % 2**32
    return a, b, c, d


def noise(seed=7, sample_index=0, position=3, group=0, purpose=0, vocab=40):
    return gumbel(torch.tensor([seed]), torch.tensor([sample_index]), torch.tensor([position]), group, purpose, vocab)[
        0
    ]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert philox(counter, key) == expected


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_philox_is_exact_integer_arithmetic(counter, key):
    assert philox(counter, key) == philox_of_integers(counter, key)


def test_uniforms_exclude_both_ends():
    low, high = open_uniform(torch.tensor([0, 2**32 - 1])).tolist()
    assert low == 2.0**-33
    assert high == 1 - 2.0**-24


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    sample_index=WORD,
    position=WORD,
    group=st.integers(0, 2**16 - 1),
    purpose=st.integers(0, 2**16 - 1),
    token=st.integers(0, 39),
)
def test_noise_is_keyed_by_everything_that_names_a_draw(seed, sample_index, position, group, purpose, token):
    counter = (token // 4, position, sample_index, group + purpose * 2**16)
    uniform = (philox_of_integers(counter, (seed % 2**32, seed // 2**32 % 2**32))[token % 4] + 0.5) / 2**32
    drawn = noise(seed, sample_index, position, group, purpose)[token].item()
    # Where the uniform nears 1 its fp32 steps show: -log(-log(1 - u)) then changes by up to 2 ** -24 / (1 - u).
    tolerance = 1e-5 + 2.0**-22 / max(1 - uniform, 2.0**-24)
    assert drawn == pytest.approx(-math.log(-math.log1p(-uniform)), abs=tolerance)


def test_noise_of_a_row_does_not_depend_on_its_neighbours():
    generator = torch.Generator().manual_seed(0)
    seed, sample_index, position = torch.randint(0, 2**31, (3, 17), generator=generator)
    together = gumbel(seed, sample_index, position, 2, 1, 101)
    for row in range(17):
        one = slice(row, row + 1)
        assert torch.equal(gumbel(seed[one], sample_index[one], position[one], 2, 1, 101)[0], together[row])


@pytest.mark.parametrize("vocab", [1, 2, 3, 5, 39])
def test_noise_of_an_id_does_not_depend_on_the_vocabulary(vocab):
    assert torch.equal(noise(vocab=vocab), noise()[:vocab])


@pytest.mark.parametrize("bad", [{"group": -1}, {"group": 2**16}, {"purpose": 2**16}])
def test_a_group_or_purpose_that_would_alias_another_is_refused(bad):
    with pytest.raises(ValueError, match="must be in"):
        noise(**bad)
