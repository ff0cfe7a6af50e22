"""Device memory is touched only inside phases: a whole request, under a guard that raises."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omni.device import Event, Stream
from omni.device.cpu import CpuDevice
from omni.testing.launch_guard import LaunchGuard
from tests.support.tiny_text import TextEngine

SAMPLINGS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 1},
    {"repetition_penalty": 1.2, "suppress_token_ids": (1, 2), "stop_token_ids": (3,)},
)


def test_requests_from_submission_to_end_run_in_phases(text_model: Path):
    device = CpuDevice()
    stage = TextEngine(text_model, {"text.max_num_seqs": 2, "text.block_size": 4}, device)
    with LaunchGuard(device) as guard:
        recorders = []
        for index, sampling in enumerate(SAMPLINGS):
            recorders.append(stage.submit(str(index), range(2 + 5 * index), max_tokens=6, **sampling))
            stage.tick()
        stage.run()
    assert all(len(recorder.tokens) == 6 for recorder in recorders)
    assert guard.operations > 100


Touch = Callable[[torch.Tensor], object]
TOUCHES: dict[str, Touch] = {
    "reads": lambda rows: rows.sum(),
    "writes": lambda rows: rows.fill_(1.0),
    "copies": lambda rows: rows.clone(),
    "moves": lambda rows: rows.to(torch.float64),
    "allocates": lambda rows: torch.zeros(3),
    "makes a tensor of host data": lambda rows: torch.tensor([1, 2]),
    "gathers": lambda rows: rows[torch.tensor([0])],
    "synchronizes": lambda rows: rows[0, 0].item(),
    "asks": lambda rows: bool(rows[0, 0]),
    "copies in flatten": lambda rows: rows.T.flatten(),
    "copies in reshape": lambda rows: rows.T.reshape(2, 6),
    "copies in contiguous": lambda rows: rows.T.contiguous(),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("touch", TOUCHES)
def test_an_operation_outside_a_phase_is_caught(touch: str, inference: bool):
    device, rows = CpuDevice(), torch.arange(12.0).view(3, 4)

    def phase() -> None:
        TOUCHES[touch](rows)

    with torch.inference_mode(inference), LaunchGuard(device) as guard:
        with pytest.raises(AssertionError, match="ran outside a phase"):
            TOUCHES[touch](rows)
        device.launch(device.stream("s"), phase)
        assert guard.operations > 0


@pytest.mark.parametrize("inference", [False, True])
def test_views_are_no_operation(inference: bool):
    device, rows = CpuDevice(), torch.arange(12.0).view(3, 4)
    with torch.inference_mode(inference), LaunchGuard(device) as guard:
        views = (
            rows[1:, 2],
            rows.T,
            rows.flatten(),
            rows.unsqueeze(0).expand(2, 3, 4),
            rows.view(torch.int32),
            rows.reshape(4, 3),
            rows.unflatten(0, (3, 1)),
            *rows.unbind(1),
            *rows.split(2),
            *rows.chunk(2),
            rows.detach(),
            rows.movedim(0, 1),
        )
    assert all(view.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr() for view in views)
    assert guard.operations == 0


def test_allocation_through_the_device_is_allowed():
    device = CpuDevice()
    with LaunchGuard(device):
        made = device.zeros((2,), torch.int64)
    assert made.tolist() == [0, 0]


def test_a_planted_violation_in_a_worker_is_caught(text_model: Path, monkeypatch: pytest.MonkeyPatch):
    device = CpuDevice()
    stage = TextEngine(text_model, device=device)
    record, rows = device.record, torch.ones(2)

    def peek(stream: Stream) -> Event:
        rows.max()
        return record(stream)

    monkeypatch.setattr(device, "record", peek)
    stage.submit("r", range(5), max_tokens=3)
    message = r"text, the stage is closed: AssertionError: torch.max ran outside a phase"
    with pytest.raises(AssertionError, match=message), LaunchGuard(device):
        stage.run()


def test_the_guard_ends_with_its_block():
    device = CpuDevice()
    with LaunchGuard(device):
        pass
    assert torch.ones(2).sum() == 2
