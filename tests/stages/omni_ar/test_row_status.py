"""What a row's status says."""

import pytest

from omni_ar.kernels.step.status import RowStatus


@pytest.mark.parametrize(
    ("status", "reason", "has_frame"),
    [
        (RowStatus.RUNNING, None, True),
        (RowStatus.STOPPED, "stop", False),
        (RowStatus.FULL, "length", False),
        (RowStatus.STOPPED_WITH_FRAME, "stop", True),
        (RowStatus.FULL_WITH_FRAME, "length", True),
    ],
)
def test_what_a_status_says(status: RowStatus, reason: str | None, has_frame: bool) -> None:
    assert (status.reason if status.over else None, status.has_frame) == (reason, has_frame)
    assert RowStatus(int(status)) is status, "it travels as a number"
