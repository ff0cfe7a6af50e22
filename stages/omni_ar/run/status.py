"""The statuses of a request at an autoregressive stage, and their legal transitions."""

from collections.abc import Mapping
from enum import IntEnum, auto


class RequestStatus(IntEnum):
    """A request has one status at a time. `ArRequest.set_status` changes it.

    | status | the request | set by |
    |---|---|---|
    | WAITING_FOR_INPUTS | lacks its prompt, a multimodal embedding, or the first conditioning of its steps | `ArWorker.open` |
    | WAITING | waits for a row and for blocks | `Scheduler.add`, `.unblock` |
    | PREEMPTED | lost its blocks, keeps its row, and waits for blocks | `Scheduler.plan`, `.unblock` |
    | BLOCKED | was first in line and cannot start now; others go first until `Scheduler.unblock` | `Scheduler.plan` |
    | RUNNING | has a row and blocks: it prefills or decodes | `Scheduler.plan`, `.launched` |
    | ISOLATING | a step that it was part of failed; its blocks are about to be taken | `Scheduler.retry` |
    | ISOLATED | waits, without blocks, for its turn to run in steps of its own | `Scheduler.plan` |
    | RUNNING_ALONE | runs in steps of its own, until it has sampled a token | `Scheduler.plan` |
    | FAILED | cannot go on; the worker reports the error before its tick ends | `Scheduler.plan` |
    | WAITING_FOR_LOGPROBS | has all its tokens; some log-probabilities are still to be read | `ArWorker.finish_request` |
    | FINISHED | has left the stage: finished, failed or aborted | `ArWorker.drop` |

    `ArRequest.paused` is not a status, since it is independent of all of them: a consumer that is behind may pause a request
    that waits for its prompt, or an isolated one, and the request has the same status when it is resumed. A paused request is
    in no step. Prefill and decode are not statuses either: `ArRequest.decoding` follows from two counts.
    """

    WAITING_FOR_INPUTS = auto()
    WAITING = auto()
    PREEMPTED = auto()
    BLOCKED = auto()
    RUNNING = auto()
    ISOLATING = auto()
    ISOLATED = auto()
    RUNNING_ALONE = auto()
    FAILED = auto()
    WAITING_FOR_LOGPROBS = auto()
    FINISHED = auto()

    @property
    def takes_tokens(self) -> bool:
        """Whether the request accepts tokens of steps in flight; otherwise they are discarded."""
        return self not in _ENDS


_S = RequestStatus
# A request with a row may have steps in flight whose tokens end it, in every status.
_ENDS = (_S.FAILED, _S.WAITING_FOR_LOGPROBS, _S.FINISHED)

TRANSITIONS: Mapping[RequestStatus, set[RequestStatus]] = {
    _S.WAITING_FOR_INPUTS: {_S.WAITING, _S.FINISHED},
    _S.WAITING: {_S.RUNNING, _S.BLOCKED, _S.FAILED, _S.FINISHED},
    _S.PREEMPTED: {_S.RUNNING, _S.BLOCKED, *_ENDS},
    _S.BLOCKED: {_S.WAITING, _S.PREEMPTED, _S.WAITING_FOR_LOGPROBS, _S.FINISHED},
    _S.RUNNING: {_S.PREEMPTED, _S.ISOLATING, *_ENDS},
    _S.ISOLATING: {_S.ISOLATED, *_ENDS},
    _S.ISOLATED: {_S.RUNNING_ALONE, *_ENDS},
    _S.RUNNING_ALONE: {_S.RUNNING, _S.ISOLATED, _S.ISOLATING, *_ENDS},
    _S.FAILED: {_S.FINISHED},
    _S.WAITING_FOR_LOGPROBS: {_S.FINISHED},
    _S.FINISHED: set(),
}
"""The statuses that may follow each status."""
