"""What host processors return: a wrong edit is blamed on the processor, not on the stage that merges it."""

from typing import Any

import numpy as np
import pytest

from omni.errors import ReturnedError, fault_of
from omni.sampling import LogitsEdit
from omni_ar.run.host_processors import _process

VOCAB = 12


def edit_of(allowed: Any) -> LogitsEdit:
    return LogitsEdit(allowed)


class ConstantProcessor:
    """Returns its constructor's argument."""

    def __init__(self, edit: object = LogitsEdit(), ends: object = False) -> None:
        self._edit = edit
        self._ends = ends

    def push(self, token: int) -> bool:
        return self._ends  # type: ignore[return-value]

    def edit(self) -> LogitsEdit:
        return self._edit  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("processor", "problem"),
    [
        (ConstantProcessor(None), "ConstantProcessor.edit returned None: return a LogitsEdit"),
        (ConstantProcessor([1, 2]), "ConstantProcessor.edit returned a list: return a LogitsEdit"),
        (
            ConstantProcessor(edit_of(np.ones(VOCAB))),
            "ConstantProcessor.edit returned a wrong LogitsEdit: allowed is float64 [12], not int64",
        ),
        (
            ConstantProcessor(edit_of([True])),
            "ConstantProcessor.edit returned a wrong LogitsEdit: 'list' object has no attribute 'dtype'",
        ),
        (ConstantProcessor(ends=None), "ConstantProcessor.push returned None: return whether the text ends"),
    ],
    ids=["None", "a list", "a mask of numbers", "a list in the edit", "an end that is None"],
)
def test_a_wrong_result_is_the_processor_s_fault(processor: ConstantProcessor, problem: str) -> None:
    with pytest.raises(ReturnedError) as caught:
        _process([ConstantProcessor(), processor], [3], VOCAB)
    assert str(caught.value).startswith(problem)
    assert f"({__file__}:" in fault_of(caught.value)


def test_the_end_may_be_a_number_of_numpy() -> None:
    assert _process([ConstantProcessor(ends=np.True_)], [3], VOCAB) is None
    assert _process([ConstantProcessor(ends=np.False_)], [3], VOCAB) == LogitsEdit()
