"""The steps that a stage's memory is measured with are as large as its limits allow."""

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from omni.stage.receiver import copy_rows
from omni_ar.model import ArModel
from omni_ar.options import ArOptions
from omni_ar.run.limits import Limits
from omni_ar.run.plan import StepPlan
from omni_ar.run.profile import run_largest_steps
from omni_ar.run.step import StepContext
from tests.support.ar_driver import ArDriver
from tests.support.small_codec import SmallCodec
from tests.support.small_text import SmallText


def measured(model: ArModel, options: ArOptions, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The plans of all steps that were run."""
    driver = ArDriver(model, options=options)
    runner, plans = driver.worker._runner, []
    execute = runner.execute_model

    def kept(plan: StepPlan) -> StepContext:
        plans.append(plan)
        return execute(plan)

    monkeypatch.setattr(runner, "execute_model", kept)
    with torch.inference_mode():
        run_largest_steps(runner, model.shape, Limits.of("text", options, model.shape))
    return plans


@pytest.mark.parametrize(("length", "budget"), [(2, 8), (3, 8), (20, 7), (20, 64)])
@pytest.mark.parametrize("payload", [False, True])
def test_rows_are_full_and_chunks_take_the_whole_budget(
    length: int, budget: int, payload: bool, monkeypatch: pytest.MonkeyPatch
):
    options = ArOptions(max_num_seqs=4, block_size=4, max_model_len=length, max_num_batched_tokens=budget)
    decodes, mixed, scored = measured(SmallText(payload=payload), options, monkeypatch)
    assert [request.num_computed_tokens for request in decodes.decodes] == [length - 1] * 4
    assert not decodes.chunks
    longest = max(length - 2, 1)
    assert mixed.chunk_tokens == min(budget, 4 * longest)
    assert len(mixed.decodes) + len(mixed.chunks) == 4
    for chunk in (*mixed.chunks, *scored.chunks):
        assert chunk.start + chunk.length == chunk.request.length == length - 1
        assert chunk.start >= 0
        assert chunk.start or length == 2, "a chunk behind a context needs more than one without"
        assert chunk.request.wants_hidden == payload
    assert scored.chunk_tokens == min(budget, longest)
    assert len(scored.decodes) == 3


def test_nothing_is_scored_of_a_model_whose_prompt_is_no_row_of_its_tokens(monkeypatch: pytest.MonkeyPatch):
    options = ArOptions(max_num_seqs=2, block_size=4, max_model_len=20)
    assert Limits.of("codec", options, SmallCodec().shape).scored_tokens == 0
    assert len(measured(SmallCodec(), options, monkeypatch)) == 2


class Asked(TorchFunctionMode):
    """copies: whether each conversion was asked not to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[object] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.to:
            self.copies.append((kwargs or {}).get("non_blocking"))
        return func(*args, **(kwargs or {}))


def test_rows_that_come_from_the_host_are_copied_without_waiting():
    """No CPU shows the wait: what is asked of torch does."""
    conditioning, rows = torch.zeros(4, 2), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    with Asked() as asked:
        copy_rows(conditioning, rows, slice(None), torch.tensor([2]), slice(None))
    assert asked.copies == [True]
    assert conditioning.tolist() == [[0, 0], [0, 0], [1, 2], [0, 0]]
