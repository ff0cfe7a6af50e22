"""`Prompt.of`: a prompt of token ids alone."""

import numpy as np

from omni_ar.inputs import Prompt


def test_a_repetition_penalty_counts_ids_of_the_same_vocabulary_alone() -> None:
    ids = np.array([7, 3, 7, 1])
    prompt = Prompt.of(ids)
    assert prompt.penalized_ids.tolist() == [1, 3, 7]
    assert prompt.positions.tolist() == [[0, 1, 2, 3]]
    assert (prompt.length, prompt.next_position) == (4, 4)
    assert Prompt.of(ids, penalized=False).penalized_ids.size == 0
    prompt.check(1, 1, vocab_size=8)
