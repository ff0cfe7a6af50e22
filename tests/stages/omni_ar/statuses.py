"""What holds of the requests of a stage between two steps."""

from collections.abc import Iterable

from omni_ar.run.request import ArRequest, RequestStatus
from omni_ar.run.scheduler import Scheduler

HOLDS_BLOCKS = (RequestStatus.RUNNING, RequestStatus.ISOLATING, RequestStatus.RUNNING_ISOLATED)


def check_statuses(scheduler: Scheduler, requests: Iterable[ArRequest]) -> None:
    """Each of the stage's requests is in the list of its status and in no other, and holds what its status requires."""
    kept = scheduler._requests
    for status, listed in kept.items():
        assert all(request.status is status for request in listed)
        assert [request.order for request in listed] == sorted(request.order for request in listed)
    alive = list(requests)
    assert sum(map(len, kept.values())) == sum(request.status in kept for request in alive)
    for request in alive:
        assert request.status not in kept or request in kept[request.status]
        assert request.status is not RequestStatus.FINISHED
        if request.status in HOLDS_BLOCKS:
            assert request.table is not None
        elif request.status is not RequestStatus.WAITING_FOR_LOGPROBS:
            assert request.table is None
        if request.status in (RequestStatus.WAITING_FOR_INPUTS, RequestStatus.WAITING):
            assert request.row is None
        elif request.status is not RequestStatus.BLOCKED:
            assert request.row is not None
