"""A request's status: the legal ways through it."""

import pytest

from omni.sampling import SamplingParams
from omni_ar.kernels.step.status import RowStatus
from omni_ar.run.request import TRANSITIONS, ArRequest, RequestStatus

PAIRS = [(before, after) for before in RequestStatus for after in RequestStatus]


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


def name(pair: tuple[RequestStatus, RequestStatus]) -> str:
    return f"{pair[0].name} to {pair[1].name}"


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[1] not in TRANSITIONS[pair[0]]], ids=name)
def test_an_illegal_transition_raises(pair: tuple[RequestStatus, RequestStatus]):
    before, after = pair
    request = request_that_is(before)
    with pytest.raises(RuntimeError, match=f"request r is {before.name} and cannot become {after.name}"):
        request.set_status(after)
    assert request.status is before


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[1] in TRANSITIONS[pair[0]]], ids=name)
def test_a_legal_transition_changes_the_status(pair: tuple[RequestStatus, RequestStatus]):
    request = request_that_is(pair[0])
    request.set_status(pair[1])
    assert request.status is pair[1]


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
def test_what_a_status_says(status: RowStatus, reason: str | None, has_frame: bool) -> None:
    assert (status.reason if status.over else None, status.has_frame) == (reason, has_frame)
    assert RowStatus(int(status)) is status, "it travels as a number"
