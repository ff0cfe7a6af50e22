"""Runs host processors in a thread of their own, beside the steps."""

from collections.abc import Sequence

import numpy as np

from omni.device import HostTask, HostWorker
from omni.errors import ReturnedError, type_of
from omni.sampling import HostLogitsProcessor, LogitsEdit
from omni.stage import method_name
from omni_ar.run.request import ArRequest
from omni_ar.sampling.edits import check_edit, merge_edits

Result = LogitsEdit | None
"""The edit of the next token's logits; None if the text ends, so that no token may follow."""


class HostProcessorExecutor:
    """A constrained request waits until its host processors have processed its newest token; other requests do not wait."""

    def __init__(self, worker: HostWorker, vocab: int) -> None:
        self._worker = worker
        self._vocab = vocab
        self._tasks: dict[ArRequest, HostTask[Result]] = {}

    @property
    def waiting(self) -> int:
        return len(self._tasks)

    def submit(self, request: ArRequest, tokens: Sequence[int] = ()) -> None:
        """Passes the request's newest tokens to its host processors. The request runs no step until they are done."""
        host_processors, newest = request.host_processors, tuple(tokens)
        self._tasks[request] = self._worker.submit(lambda: _process(host_processors, newest, self._vocab))

    def cancel(self, request: ArRequest) -> None:
        task = self._tasks.pop(request, None)
        if task is not None:
            task.cancel()

    def poll(self) -> list[tuple[ArRequest, Result | Exception]]:
        done = [request for request, task in self._tasks.items() if task.done()]
        return [(request, _result(self._tasks.pop(request))) for request in done]

    def close(self) -> None:
        self._tasks.clear()
        self._worker.close()


def _result(task: HostTask[Result]) -> Result | Exception:
    try:
        return task.result()
    except Exception as error:  # a host processor may be user code, whose error fails only its own request
        return error
    except BaseException as error:  # a library's panic in another thread, which does not affect this one
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _process(host_processors: Sequence[HostLogitsProcessor], tokens: Sequence[int], vocab: int) -> Result:
    ends = False
    for token in tokens:
        for processor in host_processors:
            ends |= _pushed(processor, token)  # each processes every token, even if another ends the text
    return None if ends else merge_edits([_edit(processor, vocab) for processor in host_processors], vocab)


def _pushed(processor: HostLogitsProcessor, token: int) -> bool:
    ends: object = processor.push(token)
    if not isinstance(ends, bool | np.bool_):
        problem = f"{method_name(processor.push, 'push')} returned {type_of(ends)}: return whether the text ends"
        raise ReturnedError(problem, processor.push)
    return bool(ends)


def _edit(processor: HostLogitsProcessor, vocab: int) -> LogitsEdit:
    edit: object = processor.edit()
    name = method_name(processor.edit, "edit")
    if not isinstance(edit, LogitsEdit):
        raise ReturnedError(f"{name} returned {type_of(edit)}: return a LogitsEdit", processor.edit)
    try:
        check_edit(edit, vocab)
    except (AttributeError, TypeError, ValueError) as error:  # its fields may not be arrays
        raise ReturnedError(f"{name} returned a wrong LogitsEdit: {error}", processor.edit) from error
    return edit
