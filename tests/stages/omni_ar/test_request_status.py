"""A request's status: the legal ways through it."""

from contextlib import nullcontext

import pytest

from omni.sampling import SamplingParams
from omni_ar.kernels.step.status import RowStatus
from omni_ar.run.request import TRANSITIONS, ArRequest, RequestStatus


def paths() -> dict[RequestStatus, list[RequestStatus]]:
    """A shortest way to each status that can be reached from the first."""
    found: dict[RequestStatus, list[RequestStatus]] = {RequestStatus.WAITING_FOR_INPUTS: []}
    queue = list(found)
    for status in queue:
        for after in TRANSITIONS[status]:
            if after not in found:
                found[after] = [*found[status], after]
                queue.append(after)
    return found


def request_that_is(status: RequestStatus) -> ArRequest:
    made = ArRequest("r", SamplingParams(), set())
    for step in paths()[status]:
        made.set_status(step)
    assert made.status is status
    return made


@pytest.mark.parametrize("after", RequestStatus, ids=lambda status: status.name)
@pytest.mark.parametrize("before", RequestStatus, ids=lambda status: status.name)
def test_a_transition_is_made_if_it_is_legal_and_raises_otherwise(before: RequestStatus, after: RequestStatus):
    request, legal = request_that_is(before), after in TRANSITIONS[before]
    refusal = pytest.raises(RuntimeError, match=f"request r is {before.name} and cannot become {after.name}")
    with nullcontext() if legal else refusal:
        request.set_status(after)
    assert request.status is (after if legal else before)


def test_every_status_is_reached_and_can_be_aborted():
    assert set(paths()) == set(RequestStatus) == set(TRANSITIONS)
    assert all(
        RequestStatus.FINISHED in TRANSITIONS[status] for status in set(RequestStatus) - {RequestStatus.FINISHED}
    )
    assert not TRANSITIONS[RequestStatus.FINISHED], "it is the last"


def test_only_requests_that_have_ended_take_no_tokens():
    ended = {RequestStatus.FAILED, RequestStatus.WAITING_FOR_LOGPROBS, RequestStatus.FINISHED}
    assert {status for status in RequestStatus if not status.takes_tokens} == ended


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
def test_a_row_status_has_a_reason_and_may_have_a_frame(status: RowStatus, reason: str | None, has_frame: bool) -> None:
    assert (status.reason if status.finished else None, status.has_frame) == (reason, has_frame)
    assert RowStatus(int(status)) is status, "it travels as a number"
